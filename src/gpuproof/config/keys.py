"""Which keys exist? Find unknown or misplaced keys in settings, and keep text as text.

In: settings as given. Out: the settings whose key exists and, for every other setting, an error message that
suggests the intended key and lists the valid ones. The JSON Schema, which defines what each key accepts, is
built from the same types.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.base.units import first_of
from gpuproof.config.models import RunConfig
from gpuproof.config.settings import ConfigSetting, KeyPath, Mistake, dotted, shown
from gpuproof.config.suite_options import block_schemas, is_suite, option_names, options_type
from gpuproof.records.work.options import Options

ALIKE, VERY_ALIKE = 0.7, 0.9
"""Minimum similarity ratio from difflib: `rounds` matches `round`, but `notes` does not match `steps`."""
_OTHER_WORDS = {
    "run.repeats": "launches launch repeat runs num_runs replicates repetitions trials n",
    "run.save_dir": "output output_dir out_dir results results_dir dir",
    "run.experiment_name": "name experiment",
    "run.time_limit_s": "time_limit timeout",
    "benchmark.measure_steps": "steps num_steps max_steps iterations num_iterations iters num_batches",
    "benchmark.measure_seconds": "seconds duration duration_s",
    "benchmark.warmup_steps": "warmup warm_up num_warmup warmup_iterations",
    "data.batch_size": "batch batchsize bs micro_batch_size per_device_batch_size",
    "data.num_workers": "workers loader_workers",
    "data.name": "dataset data_set",
    "training.learning_rate": "lr",
    "training.precision": "dtype amp fp16 bf16 mixed_precision",
    "training.compile.enabled": "compile",
    "distributed.nproc": "gpus num_gpus ranks num_ranks nproc_per_node ngpus",
    "distributed.nodes": "nnodes num_nodes",
    "serving.rate_per_s": "rate qps request_rate",
}
OTHER_WORDS = {word: key for key, words in _OTHER_WORDS.items() for word in words.split()}
"""Name of a key in another tool → our key."""
_OPTION_WORDS: Final = dict.fromkeys(
    ("sequence_length", "seq_length", "seqlen", "max_seq_len", "max_length", "context_length", "block_size"),
    "seq_len",
)
"""Name of a model option in another tool → our option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A config key with a value, as opposed to a section."""

    path: KeyPath
    is_text: bool
    """Whether the value is free text, so that `007` and `true` are taken literally."""
    is_free: bool
    """Whether the value is a mapping whose keys a plug-in checks."""
    may_be_null: bool
    """Whether the value may also be null."""

    @property
    def description(self) -> str:
        """The meaning of the key."""
        if _is_block(self.path):
            return f"an option of {self.path[0]}"
        return " ".join(schema_at(self.path)["description"].split())


@functools.cache
def all_keys() -> Mapping[KeyPath, Key]:
    """Return every key that can be set to a value, in the order of the model."""
    blocks = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    keys = (key for key in _walk_keys(blocks, ()) if key.path != ("suite_options",))
    return types.MappingProxyType({key.path: key for key in keys})


def _keys_at(path: KeyPath) -> Mapping[KeyPath, Key]:
    """Return every key, including those of another package's suite if `path` starts with its name.

    Raises:
        UsageError: the suite cannot be loaded.
    """
    if not _is_block(path):
        return all_keys()
    suite, hints = path[0], typing.get_type_hints(options_type(path[0]) or object)
    keys = (_key((suite, name), hints[name]) for name in option_names(suite))
    return {**all_keys(), **{key.path: key for key in keys}}


def _is_block(path: KeyPath) -> bool:
    """Return whether a path starts with the name of another package's suite."""
    return bool(path) and path[0] not in RunConfig.model_fields and is_suite(path[0])


@functools.cache
def _sections() -> frozenset[KeyPath]:
    return frozenset(path[:end] for path in all_keys() for end in range(len(path)))


def _is_section(path: KeyPath) -> bool:
    """Return whether a path is a section: one of ours (the root is ()), or a suite's own block."""
    return path in _sections() or (len(path) == 1 and _is_block(path))


def keys_below(section: KeyPath) -> list[str]:
    """Return the keys and sections directly below `section`."""
    depth = len(section)
    below = [path[depth] for path in _keys_at(section) if path[:depth] == section]
    return list(dict.fromkeys(below if section else [*below, *_blocks()]))


def _blocks() -> Iterable[str]:
    """Return the suites with options; a suite that cannot be loaded reports this when used."""
    for suite in registry.names(registry.SUITES):
        with contextlib.suppress(UsageError):
            if _is_block((suite,)) and option_names(suite):
                yield suite


def _walk_keys(types: Mapping[str, Any], above: KeyPath) -> Iterable[Key]:
    for name, annotation in types.items():
        path = (*above, name)
        if isinstance(annotation, type) and issubclass(annotation, Options):
            yield from _walk_keys(annotation.types(), path)
        else:
            yield _key(path, annotation)


def _key(path: KeyPath, annotation: Any) -> Key:
    held = set(_held_types(annotation))
    is_free = any(kind in (dict, Mapping) or dataclasses.is_dataclass(kind) for kind in held)
    return Key(path=path, is_text=str in held, is_free=is_free, may_be_null=type(None) in held)


def _held_types(annotation: Any) -> Iterable[Any]:
    if typing.get_origin(annotation) is Annotated:
        yield from _held_types(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (types.UnionType, typing.Union):
        for member in typing.get_args(annotation):
            yield from _held_types(member)
    else:
        yield typing.get_origin(annotation) or annotation


def enclosing_key(path: KeyPath) -> Key | None:
    """Return the key at `path`, or the key that contains `path`; None if there is neither."""
    keys, ends = _keys_at(path), range(1, len(path) + 1)
    return next((keys[path[:end]] for end in ends if path[:end] in keys), None)


def check_keys(settings: Iterable[ConfigSetting]) -> tuple[list[ConfigSetting], list[Mistake]]:
    """Return the settings with known keys, and the mistakes; values of text keys stay as written."""
    valid: list[ConfigSetting] = []
    mistakes: list[Mistake] = []
    refused: set[KeyPath] = set()
    for written in settings:
        if any(written.path[:end] in refused for end in range(1, len(written.path))):
            continue
        key = enclosing_key(written.path)
        setting = written
        if key is not None and key.is_text and written.written and written.value is not None:
            setting = replace(written, value=written.written)
        if key is not None:
            mistake = _fault_inside(setting, key)
        elif _is_section(setting.path):
            mistake = _fault_of_section(setting)
        else:
            mistake = _unknown_key(setting)
        if mistake is not None:
            mistakes.append(mistake)
            refused.add(setting.path)
        elif key is not None:
            valid.append(setting)
    return valid, mistakes


def _fault_inside(setting: ConfigSetting, key: Key) -> Mistake | None:
    if not key.is_free and (setting.value == {} or setting.path != key.path):
        cause = f"{dotted(key.path)} has a single value and no keys below it"
        return Mistake.in_setting(setting, cause, next_step=f"The key means: {key.description}")
    if not _is_finite(setting.value):
        return Mistake.in_setting(setting, "cannot be infinite or NaN", next_step="Write a finite number")
    if setting.value is None and key.may_be_null:
        return None
    if key.is_free and setting.path == key.path and setting.value != {}:
        text = shown(setting.value, setting.written)
        return Mistake.in_setting(
            setting, f"expected a mapping of options, found {text}", next_step="Write `option: value` below"
        )
    return None


def _is_finite(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _fault_of_section(setting: ConfigSetting) -> Mistake | None:
    if setting.value == {}:
        return None
    names = ", ".join(keys_below(setting.path))
    text = shown(setting.value, setting.written)
    return Mistake.in_setting(
        setting,
        f"expected a section, found {text}",
        next_step=f"Set one of its keys ({names}), or remove it",
    )


def _unknown_key(setting: ConfigSetting) -> Mistake:
    ends = range(1, len(setting.path) + 1)
    depth = next(end for end in ends if not _is_section(setting.path[:end]))
    path = setting.path[:depth]
    valid = keys_below(path[:-1])
    home = dotted(path[:-1]) or "the config"
    guess = _probable_key(path, valid)
    meant = f"; did you mean {guess}?" if guess else "."
    cause = f"unknown key{meant} The keys of {home} are {', '.join(valid)}"
    return Mistake.in_setting(replace(setting, path=path), cause)


def _probable_key(path: KeyPath, siblings: list[str]) -> str | None:
    """Guess the intended key: a synonym, a similarly spelt sibling, or a key in another section."""
    name = path[-1].replace("-", "_").lower()
    if name in OTHER_WORDS and not _is_block(path):
        return OTHER_WORDS[name]
    own, elsewhere = {key: key for key in siblings}, keys_by_last_name()
    options = {} if _is_block(path) else _model_options()
    ways = (
        (own, VERY_ALIKE),
        (elsewhere, VERY_ALIKE),
        (options, VERY_ALIKE),
        (own, ALIKE),
        (elsewhere, ALIKE),
    )
    for near, cutoff in ways:
        if close := difflib.get_close_matches(name, near, n=1, cutoff=cutoff):
            return near[close[0]]
    return None


@functools.cache
def _model_options() -> Mapping[str, str]:
    """Map each option of the registered models to its key and to the models that accept it."""
    models: dict[str, list[str]] = {}
    for model in registry.names(registry.WORKLOADS):
        with contextlib.suppress(UsageError):  # a model that cannot be loaded reports this when it is used
            options = registry.load(registry.WORKLOADS, model).options_type
            for option in dataclasses.fields(options) if dataclasses.is_dataclass(options) else ():
                models.setdefault(option.name, []).append(model)
    words = {**{option: option for option in models}, **_OPTION_WORDS}
    return {
        word: f"model.options.{option} (of {first_of(models[option])})"
        for word, option in words.items()
        if option in models
    }


def keys_by_last_name() -> dict[str, str]:
    """Map the last part of each key to the full key; if several share it, to the shallowest one."""
    names: dict[str, str] = {}
    for key in sorted(all_keys(), key=len):
        names.setdefault(key[-1], dotted(key))
    return names


_FORMATS = {
    "file-name": "a name of letters, digits, `.`, `_` and `-` that starts with a letter or digit",
    "commit": "auto or a commit's hexadecimal hash",
    "web-address": "an address that starts with http:// or https://",
    "nccl-test": "the name of an nccl-tests program, such as all_gather_perf",
    "checksum": "md5: followed by 32, or sha256: by 64 hexadecimal digits",
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config file, for use in editors and in the documentation."""
    schema = json.loads(json.dumps(_whole()).replace(r"\n", " "))
    del schema["properties"]["suite_options"]  # filled in from the suites' own sections
    properties, definitions = block_schemas(frozenset(RunConfig.model_fields))
    schema["properties"] |= properties
    schema["$defs"] |= definitions
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


@functools.cache
def _whole() -> dict[str, Any]:
    return RunConfig.model_json_schema()


def schema_at(path: KeyPath) -> dict[str, Any]:
    """Return the JSON Schema of a key's value."""
    node = whole = _whole()
    for name in path:
        reference = node.get("$ref")
        section = whole["$defs"][reference.rpartition("/")[2]] if reference else node
        node = section["properties"][name]
    return node


def accepted(schema: Mapping[str, Any]) -> str:
    """Describe in words which values a JSON Schema allows.

    >>> accepted({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'a whole number from 1, or null'
    """
    if "anyOf" in schema:
        return ", or ".join(accepted(part) for part in schema["anyOf"])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return f"one of {', '.join(str(v).lower() if isinstance(v, bool) else v for v in schema['enum'])}"
    if schema["type"] in ("array", "object"):
        return _several(schema)
    if schema["type"] == "string":
        return _text(schema)
    words = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "null": "null"}
    return words[schema["type"]] + _bounds(schema)


def _several(schema: Mapping[str, Any]) -> str:
    if schema["type"] == "array":
        return f"a list, each item {accepted(schema['items'])}"
    named = " of names of letters, digits and `_` to" if "patternProperties" in schema else " of"
    return f"a mapping{named} single values"


def _text(schema: Mapping[str, Any]) -> str:
    if "format" in schema:
        return _FORMATS[schema["format"]]
    return f"text of {schema.get('minLength', 0)} to {schema['maxLength']} printable characters"


def _bounds(schema: Mapping[str, Any]) -> str:
    signs = {"minimum": " from", "exclusiveMinimum": " above", "maximum": " to", "exclusiveMaximum": " below"}
    if "exclusiveMinimum" in schema:
        signs |= {"maximum": " and at most", "exclusiveMaximum": " and below"}
    elif "minimum" in schema:
        signs |= {"exclusiveMaximum": " to below"}
    return "".join(f"{word} {schema[sign]:,}" for sign, word in signs.items() if sign in schema)
