"""Read YAML text into settings, each with its line.

The parser's events are read one by one, so that what a config has no use for and what hides mistakes
(anchors, aliases, merge keys, tags, duplicate keys, several documents, deep nesting) is refused where it
stands, before anything is built from it. In: text. Out: settings, or a `ConfigError` with every mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from gpuproof.config.errors import ConfigError, Mistake
from gpuproof.config.scalars import resolve
from gpuproof.config.settings import KeyPath, Setting, dotted

MAX_DEPTH = 20
"""Levels of nesting; a config has four, and a parser of untrusted text needs some bound."""

_NO_REFERENCES = "anchors, aliases and merge keys are refused: what a run did must be readable line by line"
_BEYOND_UNICODE = re.compile(r"\\U(?!00(0|10))[0-9a-fA-F]{8}")
_WRITE_IT_OUT = "Write the value out where it is used"


def read_settings(text: str, *, source: str) -> list[Setting]:
    """Read a whole YAML document whose root is a mapping.

    Raises:
        ConfigError: the text is no YAML, or holds what a config may not hold.
    """
    return _Reader(text, source=source).document()


def read_value(text: str, *, path: KeyPath, source: str) -> list[Setting]:
    """Read one YAML value (a scalar, `[a, list]` or `{a: mapping}`) as the value of the key `path`.

    Raises:
        ConfigError: as `read_settings`.
    """
    return _Reader(text, source=source, key=path).value()


def is_storable(text: str) -> bool:
    """Tell whether text can be printed and recorded: no control characters, no halves of characters."""
    return text.isprintable() or all(c.isprintable() or c in "\n\t\N{NO-BREAK SPACE}" for c in text)


class _Reader:
    """One pass over the events of one text; mistakes are gathered, and only broken syntax ends it early.

    The text is a file, whose lines are named, or the value of one key, where the key says it all.
    """

    def __init__(self, text: str, *, source: str, key: KeyPath = ()) -> None:
        self._text = text
        self._source = source
        self._key = key
        self._in_lines = not key
        self._events = self._parse()
        self._settings: list[Setting] = []
        self._mistakes: list[Mistake] = []

    def document(self) -> list[Setting]:
        root = self._root()
        if root is None or (isinstance(root, ScalarEvent) and not root.value):
            self._stop(1, (), "the config is empty", "Give it at least a section, such as `data:`")
        if not isinstance(root, MappingStartEvent):
            self._stop(_line(root), (), "a config is a mapping of sections", "Write `section:` and its keys")
        self._check_node(root, ())
        self._read_mapping(())
        return self._finish()

    def value(self) -> list[Setting]:
        root = self._root()
        if root is None:
            self._stop(1, (), "no value is given", "Write null for none")
        self._read(root, self._key, line=1)
        return self._finish()

    def _root(self) -> Event | None:
        next(self._events)
        start = next(self._events)
        if isinstance(start, StreamEndEvent):
            return None
        assert isinstance(start, DocumentStartEvent)
        if start.version not in (None, (1, 2)):
            self._stop(_line(start), (), "the %YAML directive asks for another YAML than 1.2", "Remove it")
        return next(self._events)

    def _finish(self) -> list[Setting]:
        next(self._events)
        after = next(self._events)
        if not isinstance(after, StreamEndEvent):
            self._stop(_line(after), (), "a second document begins", "Keep one document in a file")
        if self._mistakes:
            raise ConfigError(self._mistakes)
        return self._settings

    def _parse(self) -> Iterator[Event]:
        try:
            yield from YAML(typ="safe", pure=True).parse(self._text)
        except YAMLError as error:
            self._refuse_syntax(error)
        except ValueError:
            # The library's one other way out (ruamel.yaml 0.19, found by fuzzing): an escape beyond Unicode.
            found = _BEYOND_UNICODE.search(self._text)
            line = self._text.count("\n", 0, found.start() if found else 0) + 1
            self._stop(line, (), "an escape stands for no character", "Write \\U0010FFFF at most")

    def _refuse_syntax(self, error: YAMLError) -> NoReturn:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        index = min(mark.line if mark else 0, max(0, len(self._text.splitlines()) - 1))
        line = self._text.splitlines()[index] if self._text.strip() else ""
        if "\t" in line[: len(line) - len(line.lstrip())]:
            self._stop(index + 1, (), "a tab in the indentation", "Indent with spaces")
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or "unreadable text"
        form = (
            "`key: value`, indented by spaces" if self._in_lines else "one value, [a, list] or {a: mapping}"
        )
        self._stop(index + 1, (), f"not YAML: {problem}", f"Write {form}")

    def _read(self, event: Event, path: KeyPath, *, line: int) -> None:
        """Turn the node that `event` begins into settings at and below `path`."""
        self._check_node(event, path)
        if isinstance(event, MappingStartEvent):
            self._emit(path, {}, None, line)
            self._read_mapping(path)
            return
        written = event.value if isinstance(event, ScalarEvent) and event.style is None else None
        self._emit(path, self._plain(event, path), written, line)

    def _read_mapping(self, path: KeyPath) -> None:
        for key, line, event in self._entries(path):
            self._read(event, (*path, key), line=line)

    def _plain(self, event: Event, path: KeyPath) -> Any:
        """Build the plain data of the checked node that `event` begins."""
        if isinstance(event, ScalarEvent):
            return resolve(event.value) if event.style is None else event.value
        if isinstance(event, MappingStartEvent):
            return {key: self._checked(below, (*path, key)) for key, _, below in self._entries(path)}
        if isinstance(event, SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(item := next(self._events), SequenceEndEvent):
                items.append(self._checked(item, (*path, str(len(items)))))
            return items
        return None

    def _checked(self, event: Event, path: KeyPath) -> Any:
        self._check_node(event, path)
        return self._plain(event, path)

    def _entries(self, path: KeyPath) -> Iterator[tuple[str, int, Event]]:
        """Yield key, line and value event of each entry of the mapping just begun; skip wrong keys."""
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            cause = self._fault_of_key(event, lines)
            if cause is None:
                assert isinstance(event, ScalarEvent)
                lines[event.value] = _line(event)
                yield event.value, _line(event), next(self._events)
            else:
                name = event.value if isinstance(event, ScalarEvent) else "?"
                self._note(_line(event), (*path, name), *cause)
                self._skip(event)
                self._skip(next(self._events))

    def _fault_of_key(self, event: Event, lines: dict[str, int]) -> tuple[str, str] | None:
        if not isinstance(event, ScalarEvent):
            return "a key must be text", "Write the key as one word"
        key, is_plain = event.value, event.style is None
        where = f"on line {lines.get(key)}" if self._in_lines else "before"
        faults = (
            (is_plain and key == "<<", _NO_REFERENCES, _WRITE_IT_OUT),
            (event.anchor or event.tag, "a key may have no anchor or tag", "Write the key alone"),
            (is_plain and not isinstance(resolve(key), str), "a key must be text", "Put the key in quotes"),
            (not key or not is_storable(key), "a key must be printable text", "Write it as one word"),
            (key in lines, f"this key was given {where} already", "Keep one of the two"),
        )
        return next(((cause, next_step) for is_so, cause, next_step in faults if is_so), None)

    def _check_node(self, event: Event, path: KeyPath) -> None:
        if len(path) > MAX_DEPTH:
            self._stop(_line(event), path[:4], f"nested deeper than {MAX_DEPTH} levels", "Flatten it")
        if getattr(event, "anchor", None):
            self._note(_line(event), path, _NO_REFERENCES, _WRITE_IT_OUT)
        elif getattr(event, "tag", None):
            cause = "tags (`!…`) are refused: a config holds plain data only"
            self._note(_line(event), path, cause, "Remove the tag")
        elif isinstance(event, ScalarEvent) and not is_storable(event.value):
            self._note(_line(event), path, "the text holds control characters", "Remove the escapes")

    def _skip(self, event: Event) -> None:
        """Pass over the node that `event` begins."""
        depth = 0
        while True:
            depth += isinstance(event, (MappingStartEvent, SequenceStartEvent))
            depth -= isinstance(event, (MappingEndEvent, SequenceEndEvent))
            if not depth:
                return
            event = next(self._events)

    def _emit(self, path: KeyPath, value: Any, written: str | None, line: int) -> None:
        at = line if self._in_lines else None
        self._settings.append(Setting(path=path, value=value, written=written, source=self._source, line=at))

    def _note(self, line: int, path: KeyPath, cause: str, next_step: str) -> None:
        origin = f"{self._source}:{line}" if self._in_lines else self._source
        key = dotted(path or self._key)
        place = f"{origin}: {key}" if key else origin
        at = line if self._in_lines else None
        self._mistakes.append(Mistake(place=place, line=at, cause=cause, next_step=next_step))

    def _stop(self, line: int, path: KeyPath, cause: str, next_step: str) -> NoReturn:
        self._note(line, path, cause, next_step)
        raise ConfigError(self._mistakes)


def _line(event: Event) -> int:
    return int(event.start_mark.line) + 1
