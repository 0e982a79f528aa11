"""The glossary of docs/developers/language.md is followed."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = "docs/developers/language.md"
NAMES = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)|https?://\S+|\{[^{}]*\}", re.DOTALL)
NOT_OURS = ("docs/lab/", "docs/lab-log.md", GLOSSARY)
"""What programs printed on a day stays as it was printed."""


def glossary() -> list[tuple[re.Pattern[str], tuple[str, ...]]]:
    """Return a pattern for each row of the table, and the phrases that it allows."""
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \|([^|]*)\|$", (ROOT / GLOSSARY).read_text(encoding="utf-8"), re.M
    )
    words = {ours: tuple(filter(None, allowed.strip().split("; "))) for ours, allowed in rows[1:]}
    return [
        (re.compile(rf"\b(?:{'|'.join(map(re.escape, ours.split(', ')))})\b", re.I), allowed)
        for ours, allowed in words.items()
    ]


def files(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [name for name in listed if not name.startswith(NOT_OURS)]


def texts(name: str) -> Iterator[tuple[int, str]]:
    """Yield each text that people read, with its line: comments and strings of code, prose of pages."""
    content = (ROOT / name).read_text(encoding="utf-8")
    if name.endswith(".py"):
        for token in tokenize.generate_tokens(io.StringIO(content).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:
                yield token.start[0], token.string
    else:
        yield 1, NAMES.sub(lambda name: "\n" * name[0].count("\n"), content)


def dialect(text: str) -> Iterator[tuple[int, str]]:
    """Yield what the glossary replaces, with the lines before it."""
    prose = NAMES.sub(lambda name: "\n" * name[0].count("\n"), text)
    for pattern, allowed in glossary():
        for found in pattern.finditer(prose):
            around = " ".join(prose[max(0, found.start() - 40) : found.end() + 40].split())
            if not any(phrase in around for phrase in allowed):
                yield prose[: found.start()].count("\n"), around


@pytest.mark.parametrize(
    "text", ["All processors are busy.", "It was told\nso.", "runs beside it", "each host, both alike"]
)
def test_the_dialect_is_found(text: str) -> None:
    assert list(dialect(text))


@pytest.mark.parametrize(
    "text", ["`told` is a key", "foretold", "see [here](docs/alike.md)", "memory of each host, alike"]
)
def test_names_are_allowed(text: str) -> None:
    assert not list(dialect(text))


@pytest.mark.parametrize("patterns", [("src/*.py", "simulator/*.py"), ("*.md",)])
def test_nobody_writes_what_the_glossary_replaces(patterns: tuple[str, ...]) -> None:
    found = [
        f"{name}:{line + lines}: {phrase}"
        for name in files(*patterns)
        for line, text in texts(name)
        for lines, phrase in dialect(text)
    ]
    assert not found, "\n".join(found)
