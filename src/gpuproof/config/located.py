"""Read a YAML or JSON file whole, and know on which line each of its values begins.

In: text. Out: plain data, and the line of every key and item by its path. For files that are lists of things,
such as inventories; a run's recipe is read by `yaml_source`. Anchors, tags and duplicate keys are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gpuproof.config.errors import ConfigError, Mistake
from gpuproof.config.scalars import resolve

Place = tuple[str | int, ...]
MAX_DEPTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A file's data, and where each part of it stands."""

    source: str
    data: Any
    lines: Mapping[Place, int]

    def line(self, place: Place) -> int:
        """Return the line of a value, or of the nearest thing around it."""
        while place not in self.lines:
            place = place[:-1]
        return self.lines[place]

    def mistake(self, place: Place, cause: str, *, next_step: str | None = None) -> Mistake:
        """Make a mistake at a value's line."""
        line = self.line(place)
        names = ".".join(str(part) for part in place if isinstance(part, str))
        where = f"{self.source}:{line}" + (f": {names}" if names else "")
        return Mistake(place=where, line=line, cause=cause, next_step=next_step)


def read_located(text: str, *, source: str) -> Located:
    """Read one document.

    Raises:
        ConfigError: it is neither YAML nor JSON, is empty, or holds what plain data does not.
    """
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except (YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or "unreadable text"
        _refuse(source, line, f"neither JSON nor YAML: {problem}")
    if node is None:
        _refuse(source, 1, "the file is empty")
    reader = _Reader(source)
    return Located(source=source, data=reader.plain(node, ()), lines=reader.lines)


class _Reader:
    def __init__(self, source: str) -> None:
        self.lines: dict[Place, int] = {}
        self._source = source

    def plain(self, node: Node, place: Place) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(place, line)
        if node.anchor:
            _refuse(self._source, line, "anchors and aliases are refused: write the value out")
        if len(place) > MAX_DEPTH:
            _refuse(self._source, line, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, MappingNode):
            return self._mapping(node, place)
        if isinstance(node, SequenceNode):
            return [self.plain(item, (*place, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return resolve(node.value) if node.style is None else node.value

    def _mapping(self, node: MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if not isinstance(key_node, ScalarNode) or not isinstance(key, str):
                _refuse(self._source, line, "a key must be text")
            if key in found:
                _refuse(self._source, line, f"{key}: this key was given on line {self.lines[(*place, key)]}")
            self.lines[(*place, key)] = line
            found[key] = self.plain(value, (*place, key))
        return found


def _refuse(source: str, line: int, cause: str) -> NoReturn:
    raise ConfigError([Mistake(place=f"{source}:{line}", line=line, cause=cause)])
