"""Read the command line's words into settings: `--training.epochs=5`, `--distributed.devices [0,1]`.

A value is YAML (1e-4 is a number, `[0,1]` a list, `null` nothing), except that a key which holds text takes
the word as it stands. Of two values for one key the later counts, as on any command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from gpuproof.config.keys import check_keys, enclosing_key
from gpuproof.config.settings import COMMAND_LINE, ConfigError, ConfigSetting, KeyPath, Mistake
from gpuproof.config.yaml import is_storable, read_value

_HOW = "Write --section.key=value, for example --training.epochs=5"


def read_overrides(words: Sequence[str], source: str = COMMAND_LINE) -> list[ConfigSetting]:
    """Read all overrides in their order; mistakes are told to be in `source`.

    Raises:
        ConfigError: with every word that is no override and every value that is no YAML.
    """
    outcomes = [_outcome(name, value, source) for name, value in _pairs([*map(_as_text, words)])]
    mistakes = [mistake for _, wrong in outcomes for mistake in wrong]
    if mistakes:
        raise ConfigError(mistakes)
    return [setting for settings, _ in outcomes for setting in settings]


def _as_text(word: str) -> str:
    """Return a word as UTF-8 where Python could make no text of its bytes: under LANG=C, say."""
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
    """Split the words into names and values; the value of a name without one is None."""
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
        raise _error(source, f'"{name}" is no key of the config', _HOW)
    place = f"{source}: {'.'.join(path)}"
    if not value:
        _, unknown = check_keys([ConfigSetting(path=path, value={}, source=source)])
        if enclosing_key(path) is None and unknown:
            raise ConfigError(unknown)
        raise _error(place, "no value is given", "Write null for none")
    if not is_storable(name + value):
        raise _error(place, "the value holds control characters, or bytes that are not UTF-8", "Remove them")
    if _is_taken_as_it_stands(path, value):
        return [ConfigSetting(path=path, value=value, source=source)]
    return read_value(value, path=path, source=source)


def _is_taken_as_it_stands(path: KeyPath, value: str) -> bool:
    key = enclosing_key(path)
    is_yaml = value[0] in "\"'" or value in ("null", "~")
    return key is not None and key.is_text and not is_yaml


def _error(place: str, cause: str, next_step: str) -> ConfigError:
    return ConfigError([Mistake(place=place, cause=cause, next_step=next_step)])
