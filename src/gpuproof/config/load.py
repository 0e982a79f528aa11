"""Load a config: a file or recipe, with overrides from the command line, checked as a whole.

In: a path or a recipe's name, and override arguments: `--training.epochs=5`, `--distributed.devices [0,1]`.
An override's value is parsed as YAML (1e-4 is a number, `[0,1]` a list, `null` no value), but text keys take
it literally; if a key is set twice, the later value wins. Out: a `LoadedConfig`, which records where each
value came from; or one `ConfigError` that lists every mistake by file and line, with what the key accepts
(from its JSON Schema) and what was found.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from gpuproof.base.outside import plain
from gpuproof.config.keys import accepted, all_keys, check_keys, enclosing_key, schema_at
from gpuproof.config.models import RunConfig
from gpuproof.config.rules import check_place, check_workload
from gpuproof.config.rules.base import Facts, Refusal
from gpuproof.config.settings import (
    COMMAND_LINE,
    ConfigError,
    ConfigSetting,
    KeyPath,
    Mistake,
    dotted,
    lay_over,
    nest,
    shown,
)
from gpuproof.config.suite_options import is_suite, option_names
from gpuproof.config.yaml import is_storable, read_settings, read_text, read_value, resolve

DEFAULT = "default"
MAX_BYTES = 2**16
"""Maximum size of a config, 64 KiB. A typical config is a few kB; 1 MiB of hostile YAML took up to 52 s to
parse here."""
RECIPES = Path(__file__).parent.parent / "recipes"
_HOW = "Write --section.key=value, for example --training.epochs=5"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A config together with the origin of each value."""

    config: RunConfig
    origins: Mapping[str, str]
    """Dotted key → `default`, `FILE:LINE`, `command line` or `overrides`."""
    source: str
    """The path as given, or `recipe NAME`."""


def load_config(
    path_or_recipe_name: str,
    overrides: Sequence[str] = (),
    *,
    facts: Facts | None = None,
    given_by: str = COMMAND_LINE,
) -> LoadedConfig:
    """Read, merge and check the config of one run.

    Args:
        path_or_recipe_name: a YAML file, or a recipe's name if no file has that name.
        overrides: arguments such as `--training.epochs=5`.
        given_by: name of the overrides in error messages and in the origins of values.
        facts: information about where the recipe will run, if it is about to run; the workload is then looked
            up as well. With None, only the recipe is checked.

    Raises:
        ConfigError: the config is invalid (a usage error, exit code 2); lists every mistake.
    """
    source, _ = _read_source(path_or_recipe_name)
    in_file, file_mistakes = check_keys(read_file_settings(path_or_recipe_name))
    from_words, word_mistakes = check_keys(read_overrides(overrides, given_by))
    if has_matrix := any(setting.path[0] == "matrix" for setting in (*in_file, *from_words)):
        from gpuproof.config.matrix import in_one_key, matrix_mistakes

        in_file, from_words = in_one_key(in_file), in_one_key(from_words)
    settings = lay_over(in_file, from_words)
    settings = lay_over(settings, list(_places_of_items(settings)))
    config = validate(settings, mistakes=[*file_mistakes, *word_mistakes])
    if has_matrix and (mistakes := matrix_mistakes(settings, with_workloads=facts is not None)):
        raise ConfigError(mistakes)
    refusals = check_place(config, facts or Facts())
    if refusals := [*refusals, *(check_workload(config) if facts is not None else [])]:
        raise ConfigError(place_refusals(refusals, settings))
    return LoadedConfig(config=config, origins=MappingProxyType(_origins(config, settings)), source=source)


def _places_of_items(settings: Sequence[ConfigSetting]) -> Iterator[ConfigSetting]:
    """Yield the lines of list items, for suites with the options NAME_lines and NAME_recipe."""
    for setting in settings:
        suite, *names = setting.path
        lines, recipe = (f"{names[-1]}_{what}" if names else "" for what in ("lines", "recipe"))
        if setting.item_lines and is_suite(suite) and {lines, recipe} <= set(option_names(suite)):
            beside = replace(setting, written=None, item_lines=())
            yield replace(beside, path=(suite, lines), value=list(setting.item_lines))
            yield replace(beside, path=(suite, recipe), value=setting.source)


def read_file_settings(path_or_recipe_name: str) -> list[ConfigSetting]:
    """Read the settings in a file, without checking them.

    Raises:
        ConfigError: the file does not exist, or is not YAML.
    """
    source, text = _read_source(path_or_recipe_name)
    return _command_in_full(read_settings(text, source=source))


def _command_in_full(settings: list[ConfigSetting]) -> list[ConfigSetting]:
    """Read `command: [a, b]` as `command.argv`; a recipe with a command defaults to kind command."""
    full = [
        replace(s, path=("command", "argv")) if s.path == ("command",) and isinstance(s.value, list) else s
        for s in settings
    ]
    stated = {setting.path: setting for setting in full}
    argv = stated.get(("command", "argv"))
    if argv is None or ("kind",) in stated:
        return full
    return [*full, replace(argv, path=("kind",), value="command", written=None)]


def recipe_names() -> list[str]:
    """Return the names of the recipes built into gpuproof."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def _read_source(name: str) -> tuple[str, str]:
    """Return a config's name for messages, and its text; a file takes precedence over a recipe."""
    path, source = Path(name), name
    if name in recipe_names() and not path.is_file():
        path, source = RECIPES / f"{name}.yaml", f"recipe {name}"
    try:
        return source, read_text(path, source=source, max_bytes=MAX_BYTES, what="config")
    except FileNotFoundError:
        close = difflib.get_close_matches(name, recipe_names(), n=1)
        meant = f"Did you mean the recipe {close[0]}?" if close else "Give a YAML file's path, or a recipe."
        step = f"{meant} The recipes are {', '.join(recipe_names())}"
        raise _error(name or '""', "there is no such file or recipe", step) from None


def _origins(config: RunConfig, settings: Sequence[ConfigSetting]) -> dict[str, str]:
    """Return the origin of every key, and of each plug-in option that was set on its own."""
    origins = {dotted(path): DEFAULT for path in all_keys()}
    for suite, options in config.suite_options.items():
        origins |= {f"{suite}.{key}": DEFAULT for key in options}
    for setting in settings:
        for end in range(1, len(setting.path)):
            origins.pop(dotted(setting.path[:end]), None)
        origins[dotted(setting.path)] = setting.origin
    return origins


def as_yaml(loaded: LoadedConfig, *, with_origins: bool = False) -> str:
    """Write every value as YAML that can be loaded again, with its origin in a comment if requested."""
    values = loaded.config.model_dump(mode="json")
    blocks = values.pop("suite_options")
    lines = _lines({**values, **blocks}, loaded.origins, "")
    return "".join(f"{line}  # {at}\n" if at and with_origins else f"{line}\n" for line, at in lines)


def _lines(
    values: Mapping[str, Any], origins: Mapping[str, str], above: str
) -> Iterator[tuple[str, str | None]]:
    """Yield each line of YAML, with the origin of its value."""
    indent = "  " * above.count(".")
    for name, value in values.items():
        is_plain = name.isidentifier() and isinstance(resolve(name), str)
        key = name if is_plain else json.dumps(name, ensure_ascii=False)
        origin = origins.get(above + name)
        if origin is None and isinstance(value, dict):
            yield f"{indent}{key}:", None
            yield from _lines(value, origins, f"{above}{name}.")
        else:
            printable = plain(origin or DEFAULT, allowed="")
            yield f"{indent}{key}: {json.dumps(value, ensure_ascii=False)}", printable


def read_overrides(words: Sequence[str], source: str = COMMAND_LINE) -> list[ConfigSetting]:
    """Read all overrides in order; mistakes are reported with `source` as their origin.

    Raises:
        ConfigError: lists every argument that is not an override, and every value that is not YAML.
    """
    outcomes = [_outcome(name, value, source) for name, value in _pairs([*map(_as_text, words)])]
    mistakes = [mistake for _, wrong in outcomes for mistake in wrong]
    if mistakes:
        raise ConfigError(mistakes)
    return [setting for settings, _ in outcomes for setting in settings]


def _as_text(word: str) -> str:
    """Return an argument as UTF-8 if Python could not decode its bytes, for example with LANG=C."""
    try:
        return word if word.isprintable() else os.fsencode(word).decode()
    except UnicodeError:
        return word


def _outcome(name: str, value: str | None, source: str) -> tuple[list[ConfigSetting], tuple[Mistake, ...]]:
    try:
        return _read_override(name, value, source), ()
    except ConfigError as error:
        return [], error.mistakes


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Split the arguments into names and values; a name without a value gets None."""
    remaining = list(words)
    while remaining:
        name, equals, value = remaining.pop(0).partition("=")
        if equals:
            yield name, value
        elif name.startswith("--") and remaining and not remaining[0].startswith("--"):
            yield name, remaining.pop(0)
        else:
            yield name, None


def _read_override(name: str, value: str | None, source: str) -> list[ConfigSetting]:
    path = tuple(name.removeprefix("--").split("."))
    if not name.startswith("--") or not all(path):
        raise _error(source, f'"{name}" is not a key of the config', _HOW)
    place = f"{source}: {'.'.join(path)}"
    key = enclosing_key(path)
    if not value:
        _, unknown = check_keys([ConfigSetting(path=path, value={}, source=source)])
        if key is None and unknown:
            raise ConfigError(unknown)
        may_be_null = key is not None and key.may_be_null
        step = "Write null for none" if may_be_null else f"Write --{'.'.join(path)}=VALUE"
        raise _error(place, "no value is given", step)
    if not is_storable(name + value):
        raise _error(place, "the value has control characters, or bytes that are not UTF-8", "Remove them")
    is_yaml = value[0] in "\"'" or value in ("null", "~")
    if key is not None and key.is_text and not is_yaml:
        return [ConfigSetting(path=path, value=value, source=source)]
    return read_value(value, path=path, source=source)


def _error(place: str, cause: str, next_step: str) -> ConfigError:
    return ConfigError([Mistake(place=place, cause=cause, next_step=next_step)])


def validate(settings: Sequence[ConfigSetting], *, mistakes: Sequence[Mistake] = ()) -> RunConfig:
    """Build the config from settings with known keys.

    `mistakes` are already known; they are reported together with the ones found here.

    Raises:
        ConfigError: the config is invalid. Conflicts between keys are reported only once each value is valid
            by itself.
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
    """Attach each rejection to the first of its keys that was set."""
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
    # all its keys have default values
    return Mistake(place=refusal.keys[0], cause=cause, next_step=next_step)


def _around(key: str, set_at: Mapping[str, ConfigSetting]) -> ConfigSetting | None:
    """Return the setting inside the key, or the one for the key that contains it as an item."""
    near = (at for at in set_at if at.startswith(f"{key}.") or key.startswith(f"{at}."))
    return next((set_at[at] for at in near), None)


def _sort_out(error: ValidationError) -> tuple[list[KeyPath], list[Refusal]]:
    """Split pydantic's errors into wrong values (by key) and rejections."""
    wrong: dict[KeyPath, None] = {}
    refusals: list[Refusal] = []
    for detail in error.errors(include_url=False):
        refusals += detail.get("ctx", {}).get("refusals", ())
        key = enclosing_key(tuple(str(part) for part in detail["loc"]))
        if key is not None:
            inside = detail["loc"][len(key.path) :][:1] if key.is_free else ()
            wrong[(*key.path, *map(str, inside))] = None
    return list(wrong), refusals


def _wrong_value(settings: Iterable[ConfigSetting], path: KeyPath) -> Mistake:
    key = enclosing_key(path)
    assert key is not None
    around = (s for s in settings if s.path[: len(key.path)] == key.path)
    # the item's own setting, if there is one
    setting = min(around, key=lambda s: s.path[: len(path)] != path)
    schema = schema_at(key.path)
    if schema.get("type") == "object":
        return Mistake.in_setting(
            setting, f"expected {accepted(schema)}", next_step=f"The key means: {key.description}"
        )
    cause = f"expected {accepted(schema)}, found {shown(setting.value, setting.written)}"
    return Mistake.in_setting(setting, cause, next_step=_hint(setting, schema, key.path))


def _hint(setting: ConfigSetting, schema: Mapping[str, Any], path: KeyPath) -> str:
    kinds = {part.get("type") for part in schema.get("anyOf", [schema])}
    if isinstance(setting.value, str):
        if kinds & {"integer", "number"} and isinstance(resolve(setting.value), (int, float)):
            return "Remove the quotes: quoted digits are text"
        if "boolean" in kinds:
            return "YAML 1.2 accepts only true and false, without quotes"
    return f"The key means: {all_keys()[path].description}"
