"""Build the pages of docs/ as a site, and refuse what a reader would stumble over.

    python scripts/build_site.py [--root FOLDER]

Zensical reports links and anchors that lead nowhere. What it does not look at is looked at here: pages that
the navigation of mkdocs.yml lacks or names in vain, pictures, links that leave docs/, and the links of README
and CONTRIBUTING. Each page also lies in the site as plain Markdown, and `llms.txt` is the list of them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from markdown.extensions.toc import slugify
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
SITE = Path("build") / "site"
LISTED_ELSEWHERE = ("decisions/", "lab/", "lab-log.md")
"""Below docs/: pages that developers reach from a page of the navigation."""
OUTSIDE = ("README.md", "CONTRIBUTING.md")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+?) *#*$", re.MULTILINE)

Section = tuple[str, Sequence[tuple[str, str]]]
"""A title, and (title, page) of what is below it."""


def sections(root: Path) -> list[Section]:
    """Return the navigation of mkdocs.yml; a page without a section is one of its own."""
    navigation = YAML(typ="safe").load(root / "mkdocs.yml")["nav"]
    return [(title, tuple(_entries(root, below))) for entry in navigation for title, below in entry.items()]


def _entries(root: Path, below: str | Sequence[str | Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    for entry in [below] if isinstance(below, str) else below:
        if isinstance(entry, str):
            yield title_of(root / "docs" / entry), entry
        else:
            yield from entry.items()


def title_of(page: Path) -> str:
    """Return a page's first heading, or its name where it is not there."""
    found = HEADING.search(page.read_text(encoding="utf-8")) if page.is_file() else None
    return found[1] if found else page.stem


def problems(root: Path) -> list[str]:
    """Return what is wrong with navigation, pictures and links, a line each."""
    docs = root / "docs"
    named = {page for _, entries in sections(root) for _, page in entries}
    written = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    orphans = {page for page in written - named if not page.startswith(LISTED_ELSEWHERE)}
    return [
        *(f"mkdocs.yml: names {page}, which is not there" for page in sorted(named - written)),
        *(f"mkdocs.yml: nav lacks {page}" for page in sorted(orphans)),
        *(line for page in sorted(written) for line in _broken(docs / page, within=docs)),
        *(line for page in OUTSIDE for line in _broken(root / page, within=root)),
    ]


def _broken(page: Path, *, within: Path) -> Iterator[str]:
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if re.match(r"[a-z]+:", target):
            continue
        if not linked.is_relative_to(within.resolve()):
            yield f"{page}: {target} leaves {within.name}/, and the site does not have it"
        elif not linked.exists():
            yield f"{page}: {target} is not there"
        elif anchor and linked.suffix == ".md" and anchor not in anchors(linked):
            yield f"{page}: {target}: no heading of that name"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as Markdown names them."""
    return {slugify(title, "-") for title in HEADING.findall(page.read_text(encoding="utf-8"))}


def build(root: Path) -> None:
    """Build the site strictly, then lay the Markdown beside it.

    Raises:
        subprocess.CalledProcessError: Zensical found something; it has said what.
    """
    program = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    colours = {} if sys.stdout.isatty() else {"NO_COLOR": "1"}
    ended = subprocess.run(
        program, cwd=root, env={**os.environ, **colours}, capture_output=True, text=True, check=False
    )
    print(ended.stdout + ended.stderr.partition("Traceback")[0], end="")
    ended.check_returncode()
    docs, site = root / "docs", root / SITE
    for page in docs.rglob("*.md"):
        beside = site / page.relative_to(docs)
        beside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, beside)
    (site / "llms.txt").write_text(index_for_programs(root), encoding="utf-8")


def index_for_programs(root: Path) -> str:
    """Return llms.txt: every page of the navigation as a link to its Markdown, with its first sentence."""
    settings = YAML(typ="safe").load(root / "mkdocs.yml")
    lines = [f"# {settings['site_name']}", "", f"> {settings['site_description']}"]
    for title, entries in sections(root):
        lines += ["", f"## {title}", ""]
        lines += [f"- [{name}]({page}): {_first_sentence(root / 'docs' / page)}" for name, page in entries]
    return "\n".join(lines) + "\n"


def _first_sentence(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    paragraphs = [part for part in FENCED.sub("", text).split("\n\n") if re.match(r"[A-Z`*\[]", part.strip())]
    first = " ".join(paragraphs[0].split()) if paragraphs else title_of(page)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first).replace("**", "")
    return re.split(r"(?<=[.!?]) ", plain)[0]


def main() -> int:
    """Build the site below --root; return 1 where something is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="folder with mkdocs.yml and docs/")
    root = parser.parse_args().root.resolve()
    wrong = problems(root)
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    try:
        build(root)
    except subprocess.CalledProcessError:
        return 1
    if not wrong:
        pages = sum(len(entries) for _, entries in sections(root))
        print(f"{pages} pages, each also as Markdown, and llms.txt: {root / SITE}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
