"""From nested plain data to a `RunConfig`, or to mistakes in words that name what is accepted.

In: settings that all name keys. Out: the config, or one mistake per wrong value at the place where it was
set, with what the key accepts (told from its JSON Schema) and what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from gpuproof.config.keys import accepted, all_keys, enclosing_key, schema_at
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.base import Refusal
from gpuproof.config.settings import ConfigError, ConfigSetting, KeyPath, Mistake, dotted, nest, shown
from gpuproof.config.yaml import resolve


def validate(settings: Sequence[ConfigSetting], *, mistakes: Sequence[Mistake] = ()) -> RunConfig:
    """Build the config from settings that name keys.

    `mistakes` is what is known to be wrong already; it is reported together with what is found here.

    Raises:
        ConfigError: something is wrong. Refusals of keys that do not hold together are told once all values
            are right by themselves.
    """
    try:
        config = RunConfig.model_validate(nest(settings))
    except ValidationError as error:
        wrong, refusals = _sort_out(error)
        faults = [_wrong_value(settings, path) for path in wrong]
        if not wrong and not mistakes:
            faults = place_refusals(refusals, settings)
        raise ConfigError([*mistakes, *faults]) from None
    if mistakes:
        raise ConfigError(mistakes)
    return config


def place_refusals(refusals: Iterable[Refusal], settings: Sequence[ConfigSetting]) -> list[Mistake]:
    """Place each refusal at the first of its keys that was set."""
    return [_mistake(refusal, settings) for refusal in refusals]


def _mistake(refusal: Refusal, settings: Sequence[ConfigSetting]) -> Mistake:
    cause, next_step = refusal.cause, refusal.next_step
    if refusal.place is not None:
        return Mistake(place=refusal.place, cause=cause, next_step=next_step)
    set_at = {dotted(setting.path): setting for setting in settings}
    for key in refusal.keys:
        if (setting := set_at.get(key) or _around(key, set_at)) is not None:
            place = f"{setting.origin}: {key}"
            return Mistake(place=place, line=setting.line, cause=cause, next_step=next_step)
    return Mistake(place=refusal.keys[0], cause=cause, next_step=next_step)  # all are at their defaults


def _around(key: str, set_at: Mapping[str, ConfigSetting]) -> ConfigSetting | None:
    """Return what was set inside the key, or the key that it is an item of."""
    near = (at for at in set_at if at.startswith(f"{key}.") or key.startswith(f"{at}."))
    return next((set_at[at] for at in near), None)


def _sort_out(error: ValidationError) -> tuple[list[KeyPath], list[Refusal]]:
    """Part pydantic's errors into keys with a wrong value and refusals."""
    wrong: dict[KeyPath, None] = {}
    refusals: list[Refusal] = []
    for detail in error.errors(include_url=False):
        refusals += detail.get("ctx", {}).get("refusals", ())
        key = enclosing_key(tuple(str(part) for part in detail["loc"]))
        if key is not None:
            wrong[key.path] = None
    return list(wrong), refusals


def _wrong_value(settings: Iterable[ConfigSetting], path: KeyPath) -> Mistake:
    setting = next(setting for setting in settings if setting.path == path)
    schema = schema_at(path)
    cause = f"expected {accepted(schema)}, found {shown(setting.value, setting.written)}"
    return Mistake.in_setting(setting, cause, next_step=_hint(setting, schema, path))


def _hint(setting: ConfigSetting, schema: Mapping[str, Any], path: KeyPath) -> str:
    kinds = {part.get("type") for part in schema.get("anyOf", [schema])}
    if isinstance(setting.value, str):
        if kinds & {"integer", "number"} and isinstance(resolve(setting.value), (int, float)):
            return "Take the quotes away: quoted digits are text"
        if "boolean" in kinds:
            return "YAML 1.2 has the two words true and false, without quotes"
    return f"The key means: {all_keys()[path].description}"
