"""Commands that pages show, and the output beside them: found in the Markdown, made small, compared in shape.

A block `sh` holds commands; `console` holds commands after `$ ` with what they print, where `…` stands for
whatever is left out. Both may be preceded by a line `<!-- run: PART; PART -->`: `exit N` is the exit code
(`exit 0, 4` of each command), `on PLACE` who answers (a cluster of the tests, fake GPUs), `whole` lets it
measure in `make test`, too. `<!-- not run: REASON -->` leaves a block out. A block with a title is a file of
that name: `yaml title="k.yaml"`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import gethostname
from string import Template

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/start", "docs/guides", "docs/from", "docs/developers")
BLOCK = re.compile(
    r"^(?:<!-- (?P<how>run|not run): (?P<words>.*?) -->\n)?"
    r"```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PROGRAMS = ("gpuproof ", "torchrun ", "python -m gpuproof")
STARTS = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*(?:gpuproof|torchrun|srun) ", re.MULTILINE)
"""A line that begins as a command of ours does, whatever the block says that it is."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command line, the variables before it, and what the page shows that it prints, if it shows that."""

    text: str
    environment: Mapping[str, str] = field(default_factory=dict)
    printed: str | None = None


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of commands."""

    page: str
    line: int
    commands: tuple[Command, ...]
    place: str = "here"
    exit_codes: tuple[int, ...] = (0,)
    """Of each command; one stands for all."""
    is_whole: bool = False

    def exit_code(self, number: int) -> int:
        """Return the exit code of the command of that place in the block."""
        return self.exit_codes[number if len(self.exit_codes) > 1 else 0]

    def __str__(self) -> str:
        """Name it as editors do."""
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the pages whose commands are run, from the root."""
    paths = [ROOT / name for name in PAGES]
    files = [page for path in paths for page in ([path] if path.is_file() else sorted(path.glob("*.md")))]
    return [file.relative_to(ROOT).as_posix() for file in files]


def text_of(page: str) -> str:
    """Return a page as it is written."""
    return (ROOT / page).read_text(encoding="utf-8")


def files_of(page: str) -> dict[str, str]:
    """Return what the page's titled blocks hold, by their title."""
    return {found["title"]: found["body"] for found in BLOCK.finditer(text_of(page)) if found["title"]}


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the blocks whose commands are run."""
    text = text_of(page)
    for found in BLOCK.finditer(text):
        if found["language"] in ("sh", "console") and found["how"] != "not run" and not found["title"]:
            block = Block(
                page=page,
                line=text[: found.start("language")].count("\n") + 1,
                commands=tuple(_commands(found["language"], found["body"])),
            )
            yield _as_told(block, found["words"] or "") if found["how"] else block


def _as_told(block: Block, words: str) -> Block:
    for part in filter(None, (part.strip() for part in words.split(";"))):
        name, _, value = part.partition(" ")
        if name == "exit":
            block = replace(block, exit_codes=tuple(map(int, value.split(","))))
        elif name == "on":
            block = replace(block, place=value)
        elif part == "whole":
            block = replace(block, is_whole=True)
        else:
            raise ValueError(f"{block}: unknown word in its comment: {part}")
    return block


def unseen_commands(page: str) -> list[str]:
    """Return lines that look like commands of ours and stand where nothing runs them, each with its place."""
    text = text_of(page)
    return [
        f"{page}:{text[: found.start('body')].count(chr(10)) + 1}: {line}"
        for found in BLOCK.finditer(text)
        if found["language"] not in ("sh", "console") and found["how"] != "not run"
        for line in found["body"].splitlines()
        if STARTS.match(line)
    ]


def _commands(language: str, body: str) -> Iterator[Command]:
    exported: dict[str, str] = {}
    parts = re.split(r"^\$ ", body, flags=re.MULTILINE)[1:] if language == "console" else [body]
    for part in parts:
        lines = re.sub(r"\\\n", " ", part).splitlines()
        written, printed = (
            (lines[:1], "\n".join(lines[1:]) or None) if language == "console" else (lines, None)
        )
        for line in filter(None, map(_without_comment, written)):
            text, variables = _without_variables(Template(line).safe_substitute(exported))
            if text:
                yield Command(text=text, environment={**exported, **variables}, printed=printed)
            exported |= variables if not text else {}


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*", "", line).strip()


def _without_variables(line: str) -> tuple[str, dict[str, str]]:
    """Return what is left of a line without the settings before its command, and these."""
    line = line.removeprefix("export ")
    variables: dict[str, str] = {}
    while found := re.match(r"(\w+)=('[^']*'|\"[^\"]*\"|[^\s'\"]*)(?:\s+|$)", line):
        variables[found[1]] = found[2].strip("'\"")
        line = line[found.end() :]
    return line, variables


def words_of(text: str) -> list[str]:
    """Return the words with which a command is started here; `; echo "exit $?"` is no part of it."""
    words = shlex.split(text.partition(";")[0])
    if words[0] == "torchrun":
        words[:1] = [sys.executable, "-m", "torch.distributed.run", "--master-port=29533"]
        program = str(Path(sys.executable).with_name("gpuproof"))
        return [program if word == "gpuproof" else word for word in words]
    if words[0] == "python":
        return [sys.executable, *words[1:]]
    if words[0] != "gpuproof":
        raise ValueError(f"nothing here runs {words[0]}: {text}")
    return [sys.executable, "-m", *words]


# Output

TIME = re.compile(r"\d{8}T?[_-]?\d{6}(?:_\d+)?|\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|[+-]\d\d:?\d\d)?")
NUMBER = re.compile(r"[-+±−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
UNIT = re.compile(
    r"# ?(?:[µmnk]?s|min|h|[kMGT]?i?B(?:/s)?|[kMGTP]?FLOP(?:/s)?|%|[µmk]?J|Wh?|[kMG]?Hz)(?=[\s);,.:]|$)"
)
SKIP = "…"


def shape(text: str, *, folder: str = "") -> list[str]:
    """Return the words of an output with numbers, times, quantities and this machine's names taken out.

    >>> shape("throughput  1,234 samples/s ±4.5 %  (3 launches)")
    ['throughput', '#', 'samples/s', '#', '(#', 'launches)']
    >>> shape("mean 1.2 ms") == shape("mean 310 µs")
    True
    """
    shown = {folder: "/shared/me", sys.executable: "/opt/gpuproof/bin/python", gethostname(): "vm"}
    for own, name in shown.items():
        text = text.replace(own, name) if own else text
    text = NUMBER.sub("#", TIME.sub("TIME", text))
    return UNIT.sub("#", text).split()


def difference(shown: str, printed: str, *, folder: str = "") -> str | None:
    """Say which part of a shown output was not printed, or None; `…` stands for anything.

    >>> difference("3 launches\\n…\\nexit 0", "5 launches of this\\nand that\\nexit 0")
    >>> difference("3 launches\\n…\\nwell", "5 launches of this")
    'not printed after the part before it: well'
    """
    chunks = re.split(rf"\s*{SKIP}\s*", shown.strip())
    words, at = shape(printed, folder=folder), 0
    for number, chunk in enumerate(chunks):
        wanted = shape(chunk, folder=folder)
        last = len(words) - len(wanted)
        starts: Sequence[int] = range(at, last + 1)
        if number == 0:
            starts = [0]
        elif number == len(chunks) - 1 and wanted:
            starts = [start for start in starts if start == last]
        found = next((start for start in starts if words[start : start + len(wanted)] == wanted), None)
        if found is None:
            return f"not printed after the part before it: {chunk}"
        at = found + len(wanted)
    return None if SKIP in shown or at == len(words) else f"more was printed: {' '.join(words[at:])}"
