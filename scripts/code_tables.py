"""Facts found only in the source code: checks with their actions, and the meanings of fields.

Input: the syntax trees of src/gpuproof. Output: rows for the pages that `write_reference.py` writes. In a
text that is built at run time, … stands for the values filled in.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "gpuproof"
CHECKS_OF_RULES = ("verdict/checks",)
CHECKS_OF_MACHINES = ("doctor", "launchers/kubernetes")
MAKERS = {"check", "gpu_check", "host_check", "stated_check", "fabric_check", "_mode_check"}


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """A check: its name, what a PASS means, what to do otherwise, and who acts."""

    name: str
    summary: str
    actions: tuple[str, ...]
    actors: tuple[str, ...]


@functools.cache
def tree(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def constants(path: Path) -> dict[str, str]:
    """Return the named strings of a file: its own, and those imported from our modules."""
    named: dict[str, str] = {}
    for node in tree(path).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpuproof."):
            origin = SOURCE.joinpath(*node.module.split(".")[1:]).with_suffix(".py")
            texts = _own_constants(origin) if origin.is_file() else {}
            imported = (alias for alias in node.names if alias.name in texts)
            named |= {alias.asname or alias.name: texts[alias.name] for alias in imported}
    return named | _own_constants(path)


def _own_constants(path: Path) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for node in tree(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = value.elts if isinstance(value, ast.Tuple) else [value]
            for name, text in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and isinstance(getattr(text, "value", None), str):
                    pairs[name.id] = text.value
    return pairs


def text_of(node: ast.expr | None, named: dict[str, str]) -> str:
    """Return a string as written, with … for values filled in; "" if the node is not a string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part, named) or "…" for part in node.values)
    if isinstance(node, ast.Name):
        return named.get(node.id, "")
    if isinstance(node, ast.BinOp):
        return text_of(node.left, named) + text_of(node.right, named)
    if isinstance(node, ast.IfExp):
        return "; or: ".join(filter(None, (text_of(node.body, named), text_of(node.orelse, named))))
    return ""


def _assigned(function: ast.AST, named: dict[str, str]) -> dict[str, str]:
    """Return the strings that are assigned to names in a function's body."""
    return {
        target.id: text_of(node.value, named)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and text_of(node.value, named)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _argument(call: ast.Call, place: int, name: str) -> ast.expr | None:
    by_name = {word.arg: word.value for word in call.keywords}
    return by_name.get(name, call.args[place] if place < len(call.args) else None)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def checks(*folders: str) -> list[CheckRow]:
    """Return the checks created by files in these folders of the package, in order."""
    paths = (path for folder in folders for path in sorted((SOURCE / folder).glob("*.py")))
    return [row for path in paths for row in _checks_in(path)]


def _checks_in(path: Path) -> Iterator[CheckRow]:
    named, functions = (
        constants(path),
        {node.name: node for node in tree(path).body if isinstance(node, ast.FunctionDef)},
    )
    for node in tree(path).body:
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else [node]
        for call in (found for made in decorators for found in ast.walk(made) if isinstance(found, ast.Call)):
            name = text_of(_argument(call, 0, "name"), named) if _called(call) in MAKERS else ""
            if name:
                yield _check_row(name, call, node, functions, named)


def _check_row(
    name: str, call: ast.Call, node: ast.stmt, functions: dict[str, ast.FunctionDef], named: dict[str, str]
) -> CheckRow:
    is_stated = _called(call) in ("stated_check", "fabric_check")
    body = call if _called(call) == "_mode_check" else node
    parts = [body] if is_stated else _with_called(body, functions)
    named = {**named, **{name: text for part in parts for name, text in _assigned(part, named).items()}}
    inside = [found for part in parts for found in ast.walk(part) if isinstance(found, ast.Call)]
    actions = [text_of(_argument(call, 3, "next_step"), named)] if is_stated else []
    actions += [text_of(word.value, named) for x in inside for word in x.keywords if word.arg == "next_step"]
    actors = [text_of(word.value, named) for x in inside for word in x.keywords if word.arg == "responsible"]
    return CheckRow(
        name=name,
        summary=text_of(_argument(call, 1, "summary"), named),
        actions=tuple(dict.fromkeys(filter(None, actions))),
        actors=tuple(dict.fromkeys(filter(None, actors))),
    )


def _with_called(node: ast.AST, functions: dict[str, ast.FunctionDef]) -> list[ast.AST]:
    reached: dict[int, ast.AST] = {id(node): node}
    waiting = [node]
    while waiting:
        for found in ast.walk(waiting.pop()):
            callee = functions.get(found.id) if isinstance(found, ast.Name) else None
            if callee is not None and id(callee) not in reached:
                reached[id(callee)] = callee
                waiting.append(callee)
    return list(reached.values())


def field_meanings(record: type) -> dict[str, str]:
    """Return the docstrings under the fields of a dataclass and its bases, each on one line."""
    meanings: dict[str, str] = {}
    for base in reversed(record.__mro__):
        if not base.__module__.startswith("gpuproof"):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for field, said in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = getattr(said.value, "value", "") if isinstance(said, ast.Expr) else ""
                meanings[field.target.id] = re.sub(r"\s+", " ", text) if isinstance(text, str) else ""
    return meanings
