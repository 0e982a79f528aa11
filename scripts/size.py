"""Print the size of the source: code lines per folder, dataclasses, and meaningless names.

    python scripts/size.py [FOLDER]

A line counts as code if it contains more than a comment or a docstring. Names are those that are bound:
variables, arguments and functions.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

EMPTY = frozenset(["found", "told", "said", "asked", "known", "own", "each", "given", "kept", "made", "come"])
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(text: str, tree: ast.AST) -> int:
    """Count the lines that contain code, excluding lines of standalone strings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield each name where it is bound."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case _:
                pass


def is_dataclass(node: ast.AST) -> bool:
    """Return whether a node is a class that has the decorator."""
    return isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list)


def main(folder: str = "src/gpuproof") -> None:
    """Print the sizes of the folders below, and the totals."""
    root = Path(folder)
    rooms: Counter[str] = Counter()
    names: Counter[str] = Counter()
    num_files = num_dataclasses = 0
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        rooms[path.relative_to(root).parts[0]] += code_lines(text, tree)
        names.update(name.strip("_") for name in bound_names(tree))
        num_dataclasses += sum(map(is_dataclass, ast.walk(tree)))
        num_files += 1
    for room, lines in rooms.most_common():
        print(f"{lines:7,}  {room}")
    exact = sum(names[word] for word in EMPTY)
    compound = sum(times for name, times in names.items() if EMPTY & set(name.split("_")))
    print(f"{rooms.total():7,}  code lines in {num_files} files, {num_dataclasses} dataclasses")
    shares = f"{exact / names.total():.1%}, with their compounds {compound / names.total():.1%}"
    print(f"names that say nothing: {shares}")


if __name__ == "__main__":
    main(*sys.argv[1:])
