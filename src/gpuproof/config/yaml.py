"""Read YAML (and JSON, a subset of it) into plain data with line numbers: the only YAML reader.

The parser's events are read one by one. Features that a config does not need and that hide mistakes (anchors,
aliases, merge keys, tags, duplicate keys, several documents, deep nesting) are therefore rejected, with their
location, before anything is built. In: a file or text. Out: a `Document`, or settings, or a `ConfigError`
with every mistake.

A plain scalar follows the core schema of YAML 1.2 (section 10.3.2), not YAML 1.1: `no` is a string, not
false, `1:30` is not ninety, `1e-4` is a number, `2026-01-01` is not a date. The YAML library still applies
some of the older rules, so this module implements the few rules of the standard itself.

>>> [resolve(text) for text in ("no", "1:30", "1e-4", "010", "0x10", "~", "TRUE", "2026-01-01")]
['no', '1:30', 0.0001, 10, 16, None, True, '2026-01-01']
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
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

from gpuproof.base.files import open_plain
from gpuproof.config.settings import ConfigError, ConfigSetting, KeyPath, Mistake, dotted

Scalar = str | int | float | bool | None
Place = tuple[str | int, ...]
"""Location of a value: the keys and item numbers that lead to it."""

MAX_DEPTH = 20
"""Maximum nesting depth; a config has four levels, and a parser of untrusted text needs a limit."""

MAX_BRACKETS = 5 * MAX_DEPTH
"""Maximum number of simultaneously open brackets, including those in strings and comments."""
_BRACKETS = re.compile(r"[][{}]")

_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + inf: float(sign + "inf") for sign in ("", "+", "-") for inf in (".inf", ".Inf", ".INF")},
}
# The lengths keep a number within what JSON readers and Python can print; a number with more digits is read
# as a float.
_DECIMAL = re.compile(r"[-+]?[0-9]{1,100}")
_OCTAL = re.compile(r"0o[0-7]{1,64}")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]{1,64}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


_NO_REFERENCES = "anchors, aliases and merge keys are rejected: what a run did must be readable line by line"
_BEYOND_UNICODE = re.compile(r"\\U(?!00(0|10))[0-9a-fA-F]{8}")
_JSON_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|(?:^|(?<=[\s,\[{\]}]))(?P<mark>//|/\*)', re.MULTILINE)
"""A string, which is skipped, or the start of a comment."""
_WRITE_IT_OUT = "Write the value out where it is used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The data in a file, and the location of each part."""

    source: str
    data: Any
    """None if the text is empty."""
    lines: Mapping[Place, int]
    """The line number of every key and item."""
    written: Mapping[Place, str]
    """The characters of each plain (unquoted) scalar."""

    def line(self, place: Place) -> int:
        """Return the line of a value, or of its nearest enclosing element."""
        while place not in self.lines:
            place = place[:-1]
        return self.lines[place]

    def mistake(self, place: Place, cause: str, *, next_step: str | None = None) -> Mistake:
        """Create a record of a mistake, with the line of the value."""
        line, names = self.line(place), dotted([part for part in place if isinstance(part, str)])
        where = f"{self.source}:{line}" + (f": {names}" if names else "")
        return Mistake(place=where, line=line, cause=cause, next_step=next_step)


def read_text(path: Path, *, source: str, max_bytes: int, what: str) -> str:
    """Read a printable UTF-8 file; `source` and `what` are its name and kind in messages.

    Raises:
        ConfigError: the file cannot be read, is larger than `max_bytes`, or is not printable UTF-8.
        FileNotFoundError: the file does not exist.
    """
    try:
        with open_plain(path) as file:
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        _refuse(source, f"this is a folder, not a {what} file", "Specify the file in it")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _refuse(source, f"cannot be read ({reason})", "Check the name and its permissions")
    if len(content) > max_bytes:
        limit = f"{max_bytes >> 20} MiB" if max_bytes >> 20 else f"{max_bytes >> 10} KiB"
        _refuse(source, f"larger than {limit}, so it is not a {what}", f"Specify the {what} file")
    return _decode(content, source)


def _decode(content: bytes, source: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        cause = f"byte 0x{content[error.start]:02x} is not UTF-8 text"
        _refuse(source, cause, "Save the file as UTF-8", line=line)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for number, line_text in enumerate(text.split("\n"), 1):
        if not is_storable(line_text):
            culprit = next(c for c in line_text if not is_storable(c))
            cause = f"the line contains the unprintable character U+{ord(culprit):04X}"
            _refuse(source, cause, "Remove it, or replace it with a plain space", line=number)
    return text


def _refuse(source: str, cause: str, next_step: str, *, line: int | None = None) -> NoReturn:
    place = (source or '""') if line is None else f"{source}:{line}"
    raise ConfigError([Mistake(place=place, line=line, cause=cause, next_step=next_step)])


def is_storable(text: str) -> bool:
    """Return whether text can be printed and recorded: no control characters and no surrogates."""
    return text.isprintable() or all(c.isprintable() or c in "\n\t\N{NO-BREAK SPACE}" for c in text)


def resolve(text: str) -> Scalar:
    """Return the value of a plain scalar; floats may be infinite or NaN."""
    if text in _WORDS:
        return _WORDS[text]
    if _DECIMAL.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    return float(text) if _FLOAT.fullmatch(text) else text


def read_document(text: str, *, source: str) -> Document:
    """Read one whole document.

    Raises:
        ConfigError: the text is not YAML, or contains something that a config may not contain.
    """
    return _Reader(text, source=source).document()


def read_settings(text: str, *, source: str) -> list[ConfigSetting]:
    """Read a whole YAML document with a mapping as its root.

    Raises:
        ConfigError: as for `read_document`, or the root is not a mapping.
    """
    document = read_document(text, source=source)
    if isinstance(document.data, dict):
        return list(_settings(document.data, (), document))
    if document.data in (None, ""):
        cause, next_step = "the config is empty", "Add at least one section, such as `data:`"
    else:
        cause, next_step = "a config is a mapping of sections", "Write `section:` and its keys"
    raise ConfigError([document.mistake((), cause, next_step=next_step)])


def read_value(text: str, *, path: KeyPath, source: str) -> list[ConfigSetting]:
    """Read one YAML value (a scalar, `[a, list]` or `{a: mapping}`) for the key `path`.

    Raises:
        ConfigError: as for `read_document`.
    """
    document = _Reader(text, source=source, key=path).document()
    return list(_settings(document.data, path, document))


def _settings(value: Any, path: KeyPath, document: Document) -> Iterator[ConfigSetting]:
    """Yield a mapping as {} followed by each of its keys, and anything else as a whole."""
    items: list[Place] = [(*path, at) for at in range(len(value))] if isinstance(value, list) else []
    if path:
        yield ConfigSetting(
            path=path,
            value={} if isinstance(value, dict) else value,
            written=document.written.get(path),
            source=document.source,
            line=document.lines.get(path),
            item_lines=tuple(document.lines[item] for item in items if item in document.lines),
        )
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _settings(below, (*path, key), document)


class _Reader:
    """One pass over the events of a text; mistakes are collected, and only broken syntax stops it.

    In a file, mistakes are reported by line; for the value of a single key, the key's name is enough.
    """

    def __init__(self, text: str, *, source: str, key: KeyPath = ()) -> None:
        self._text = text
        self._source = source
        self._key = key
        self._in_lines = not key
        self._events = self._parse()
        self._lines: dict[Place, int] = {}
        self._written: dict[Place, str] = {}
        self._mistakes: list[Mistake] = []
        self._refuse_deep_text()

    def _refuse_deep_text(self) -> None:
        """Reject more open brackets than any config needs: parsing time is quadratic in their number."""
        depth = 0
        for bracket in _BRACKETS.finditer(self._text):
            depth = depth + 1 if bracket[0] in "[{" else max(0, depth - 1)
            if depth > MAX_BRACKETS:
                line = self._text.count("\n", 0, bracket.start()) + 1
                self._stop(line, (), f"nested deeper than {MAX_DEPTH} levels", "Flatten it")

    def document(self) -> Document:
        root = self._root()
        if root is None and not self._in_lines:
            self._stop(1, (), "no value is given", "Write null for none")
        data = None if root is None else self._node(root, self._key, line=_line(root))
        self._finish(is_open=root is not None)
        if data in (None, ""):
            self._lines[()] = 1  # an empty text has no lines, so the first line number is as good as any
        lines = self._lines if self._in_lines else {}
        return Document(source=self._source, data=data, lines=lines, written=self._written)

    def _root(self) -> Event | None:
        next(self._events)
        start = next(self._events)
        if isinstance(start, StreamEndEvent):
            return None
        assert isinstance(start, DocumentStartEvent)
        if start.version not in (None, (1, 2)):
            self._stop(_line(start), (), "the %YAML directive requests a version other than 1.2", "Remove it")
        return next(self._events)

    def _finish(self, *, is_open: bool) -> None:
        if is_open:
            next(self._events)
            after = next(self._events)
            if not isinstance(after, StreamEndEvent):
                self._stop(_line(after), (), "a second document starts here", "Keep one document per file")
        if self._mistakes:
            raise ConfigError(self._mistakes)

    def _parse(self) -> Iterator[Event]:
        try:
            yield from YAML(typ="safe", pure=True).parse(self._text)
        except YAMLError as error:
            self._refuse_syntax(error)
        except ValueError:
            # The only other error that the library raises (ruamel.yaml 0.19, found by fuzzing): an escape
            # beyond Unicode.
            escape = _BEYOND_UNICODE.search(self._text)
            line = self._text.count("\n", 0, escape.start() if escape else 0) + 1
            self._stop(line, (), "an escape that is not a valid character", "Write at most \\U0010FFFF")

    def _refuse_syntax(self, error: YAMLError) -> NoReturn:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        index = min(mark.line if mark else 0, max(0, len(self._text.splitlines()) - 1))
        line = self._text.splitlines()[index] if self._text.strip() else ""
        is_json = self._text.lstrip()[:1] in ("{", "[")
        if "\t" in line[: len(line) - len(line.lstrip())] and not is_json:
            self._stop(index + 1, (), "a tab in the indentation", "Indent with spaces")
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or "unreadable text"
        marks = (found.start("mark") for found in _JSON_COMMENT.finditer(self._text) if found["mark"])
        if is_json and (place := next(marks, None)) is not None:
            at = self._text.count("\n", 0, place) + 1
            self._stop(
                at, (), "a comment with // or /*, which JSON does not have", "Remove it, or write # instead"
            )
        if is_json:
            hint = "Look for a missing comma, colon, quote or bracket"
        elif self._in_lines:
            hint = "Write `key: value`, indented by spaces"
        else:
            hint = "Write one value, [a, list] or {a: mapping}"
        self._stop(index + 1, (), f"not YAML: {problem}", hint)

    def _node(self, event: Event, place: Place, *, line: int) -> Any:
        """Build plain data for the node that starts at `event`; `line` is the line number of its key."""
        self._check_node(event, place)
        self._lines[place] = line
        if isinstance(event, ScalarEvent):
            if event.style is not None:
                return event.value
            self._written[place] = event.value
            return resolve(event.value)
        if isinstance(event, MappingStartEvent):
            entries = self._entries(place)
            return {key: self._node(below, (*place, key), line=at) for key, at, below in entries}
        items: list[Any] = []
        if isinstance(event, SequenceStartEvent):
            while not isinstance(item := next(self._events), SequenceEndEvent):
                items.append(self._node(item, (*place, len(items)), line=_line(item)))
            return items
        return None

    def _entries(self, place: Place) -> Iterator[tuple[str, int, Event]]:
        """Yield key, line and value event for each entry of the mapping just started; skip invalid keys."""
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            cause = self._fault_of_key(event, lines)
            if cause is None:
                assert isinstance(event, ScalarEvent)
                lines[event.value] = _line(event)
                yield event.value, _line(event), next(self._events)
            else:
                name = event.value if isinstance(event, ScalarEvent) else "?"
                self._note(_line(event), (*place, name), *cause)
                self._skip(event)
                self._skip(next(self._events))

    def _fault_of_key(self, event: Event, lines: dict[str, int]) -> tuple[str, str] | None:
        if not isinstance(event, ScalarEvent):
            return "a key must be text", "Write the key as one word"
        key, is_plain = event.value, event.style is None
        where = f"on line {lines.get(key)}" if self._in_lines else "before"
        faults = (
            (is_plain and key == "<<", _NO_REFERENCES, _WRITE_IT_OUT),
            (event.anchor or event.tag, "a key must not have an anchor or tag", "Write the key alone"),
            (is_plain and not isinstance(resolve(key), str), "a key must be text", "Put the key in quotes"),
            (not key or not is_storable(key), "a key must be printable text", "Write it as one word"),
            (key in lines, f"this key was already given {where}", "Keep one of the two"),
        )
        return next(((cause, next_step) for is_so, cause, next_step in faults if is_so), None)

    def _check_node(self, event: Event, place: Place) -> None:
        if len(place) > MAX_DEPTH:
            self._stop(_line(event), place[:4], f"nested deeper than {MAX_DEPTH} levels", "Flatten it")
        if getattr(event, "anchor", None):
            self._note(_line(event), place, _NO_REFERENCES, _WRITE_IT_OUT)
        elif getattr(event, "tag", None):
            cause = "tags (`!…`) are rejected: a config contains plain data only"
            self._note(_line(event), place, cause, "Remove the tag")
        elif isinstance(event, ScalarEvent) and not is_storable(event.value):
            self._note(_line(event), place, "the text contains control characters", "Remove the escapes")

    def _skip(self, event: Event) -> None:
        """Skip the node that starts at `event`."""
        depth = 0
        while True:
            depth += isinstance(event, (MappingStartEvent, SequenceStartEvent))
            depth -= isinstance(event, (MappingEndEvent, SequenceEndEvent))
            if not depth:
                return
            event = next(self._events)

    def _note(self, line: int, place: Place, cause: str, next_step: str) -> None:
        origin = f"{self._source}:{line}" if self._in_lines else self._source
        key = dotted([str(part) for part in place or self._key])
        at = line if self._in_lines else None
        where = f"{origin}: {key}" if key else origin
        self._mistakes.append(Mistake(place=where, line=at, cause=cause, next_step=next_step))

    def _stop(self, line: int, place: Place, cause: str, next_step: str) -> NoReturn:
        self._note(line, place, cause, next_step)
        raise ConfigError(self._mistakes)


def _line(event: Event) -> int:
    return int(event.start_mark.line) + 1
