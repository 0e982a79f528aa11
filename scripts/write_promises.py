"""Write docs/promises.md: each promise, its command, and the tests marked as demonstrating it.

    python scripts/write_promises.py

`@pytest.mark.promise("S1.16", …)` on a test means that the test demonstrates these rows. Rows and commands
are in docs/promises.toml; a test compares the page with the output of this program.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "docs" / "promises.toml"
PAGE = ROOT / "docs" / "promises.md"
HEAD = """# What is promised, and which test verifies it

Rows are grouped by the requirements that gpuproof grew out of: S0 and R0 the load test, S1 the training
benchmark, S2 the study of one GPU against several, S3 the validation, S4 and R4 the monitor. A row is
**shown** if a test is marked with it, and shown in part if the row says what remains. Features that need
hardware the tests do not have are shown on a CPU or on stand-ins (README, "What it was tested on").
`python scripts/write_promises.py` writes this page, from docs/promises.toml and the tests' own markers.

{shown} of {all} rows are covered by {tests} tests.

| row | what | command | state | shown by |
|---|---|---|---|---|
"""


def marked_rows(source: str) -> Iterator[tuple[str, str]]:
    """Yield (row, test name) for each row of each marker in a test file."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.promise":
                yield from ((str(ast.literal_eval(row)), node.name) for row in decorator.args)


def tests_by_row() -> dict[str, list[str]]:
    """Return the tests marked with each row, as path::name below `tests`, sorted."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for row, name in marked_rows(path.read_text(encoding="utf-8")):
            found[row].append(f"{path.relative_to(ROOT / 'tests').as_posix()}::{name}")
    return found


def page() -> str:
    """Return the full text of the page."""
    described = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    rows, why, shown = described["rows"], described["open"], tests_by_row()
    named = sorted({*rows, *shown}, key=_order)
    lines = [
        _line(row, rows.get(row, ("a defect of the original, avoided", "")), shown, why) for row in named
    ]
    tests = {test for found in shown.values() for test in found}
    head = HEAD.format(
        shown=sum(row in shown and row not in why for row in named), all=len(named), tests=len(tests)
    )
    return head + "".join(lines)


def _line(row: str, told: tuple[str, str], shown: dict[str, list[str]], why: dict[str, str]) -> str:
    what, command = told
    state = ("shown in part" if row in why else "shown") if row in shown else "not shown by a test"
    state += f": {why[row]}" if row in why else ""
    tests = "<br>".join(f"`{test}`" for test in shown.get(row, ()))
    return f"| {row} | {what} | {f'`{command}`' if command else ''} | {state} | {tests} |\n"


def _order(row: str) -> tuple[str, str, int]:
    """Sort S before R before F, and numbers numerically."""
    section, _, number = row.partition(".")
    return str("SRF".index(section[0])), section, int(number)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
