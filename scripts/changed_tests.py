"""Print the tests that import a file changed since main, even indirectly, and the architecture tests.

    python scripts/changed_tests.py [BASE]

Imports are found anywhere in a file, but programs that a test starts are not followed. A changed file that is
not a module (a golden page, a conftest) selects every test in its folder.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (ROOT / "src", ROOT / "tests", ROOT / "simulator")
ALWAYS = "tests/architecture"


def changed_since(base: str) -> set[Path]:
    """Return the files that differ from the merge base with `base`, including untracked ones."""
    words = (
        ["git", "diff", "--name-only", "--merge-base", base],
        ["git", "ls-files", "--others", "--exclude-standard"],
    )
    lines = [
        subprocess.run(each, cwd=ROOT, check=True, capture_output=True, text=True).stdout for each in words
    ]
    return {ROOT / line for line in "".join(lines).splitlines()}


def modules() -> dict[str, Path]:
    """Return every module below the folders that tests import from, keyed by name."""
    by_name = {}
    for folder in FOLDERS:
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            by_name[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return by_name


def imported(source: str) -> Iterator[str]:
    """Yield each name that a file imports, and each name in it that may be a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def touched_by(changed: set[Path]) -> set[Path]:
    """Return the changed files and every module that imports one of them, directly or indirectly."""
    by_name = modules()
    users: dict[Path, set[Path]] = {}
    for path in by_name.values():
        for name in imported(path.read_text(encoding="utf-8")):
            if name in by_name:
                users.setdefault(by_name[name], set()).add(path)
    touched, left = set(changed), list(changed)
    while left:
        for user in users.get(left.pop(), set()) - touched:
            touched.add(user)
            left.append(user)
    return touched


def main() -> None:
    """Print paths, one per line."""
    changed = changed_since(*(sys.argv[1:] or ["main"]))
    touched = {path for path in touched_by(changed) if path.exists() and ROOT / "tests" in path.parents}
    tests = {path for path in touched if path.name.startswith("test_")}
    others = {path for path in touched if path.name == "conftest.py" or path.suffix != ".py"}
    folders = {
        next((up for up in path.parents if list(up.glob("test_*.py"))), ROOT / "tests") for path in others
    }
    print(*sorted({str(path.relative_to(ROOT)) for path in tests | folders} | {ALWAYS}), sep="\n")


if __name__ == "__main__":
    main()
