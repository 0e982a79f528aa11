"""Find the config that a name stands for, and read it as text.

In: a path, or the bare name of a recipe that gpuproof brings. Out: the text, and the name that places in
messages begin with. A file of that name in the working directory goes before the recipe.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpuproof.config.errors import ConfigError, Mistake
from gpuproof.config.yaml import is_storable

MAX_BYTES = 2**16
"""64 KiB. A config is a few kB; 1 MiB of hostile YAML took up to 52 s to parse here."""

RECIPES = Path(__file__).parent.parent / "recipes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceText:
    """The text of a config and the name of where it lies: the path as given, or `recipe NAME`."""

    name: str
    text: str


def recipe_names() -> list[str]:
    """Name the recipes that come with gpuproof."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def read_source(name: str) -> SourceText:
    """Read the config file or recipe called `name`.

    Raises:
        ConfigError: there is none, it cannot be read, it is over 64 KiB, or it is no printable UTF-8.
    """
    path, shown_name = Path(name), name
    if name in recipe_names() and not path.is_file():
        path, shown_name = RECIPES / f"{name}.yaml", f"recipe {name}"
    return SourceText(name=shown_name, text=_decode(_read(path, name), shown_name))


def _read(path: Path, name: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        _refuse_absent(name)
    except IsADirectoryError:
        _refuse(name, "this is a folder, not a config file", "Name the YAML file in it")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _refuse(name, f"cannot be read ({reason})", "Check the name and its permissions")
    if len(content) > MAX_BYTES:
        _refuse(name, "larger than 64 KiB, so it is no config", "Name the YAML config file")
    return content


def _refuse_absent(name: str) -> NoReturn:
    names = recipe_names()
    close = difflib.get_close_matches(name, names, n=1)
    meant = f"Did you mean the recipe {close[0]}?" if close else "Give the path of a YAML file or a recipe;"
    _refuse(name, "there is no such file or recipe", f"{meant} The recipes are {', '.join(names)}")


def _decode(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        cause = f"byte 0x{content[error.start]:02x} is not UTF-8 text"
        _refuse(f"{name}:{line}", cause, "Save the file as UTF-8", line=line)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for number, content_line in enumerate(text.split("\n"), 1):
        if not is_storable(content_line):
            culprit = next(c for c in content_line if not is_storable(c))
            cause = f"the line holds the unprintable character U+{ord(culprit):04X}"
            _refuse(f"{name}:{number}", cause, "Remove it, or put a plain space in its place", line=number)
    return text


def _refuse(place: str, cause: str, next_step: str, *, line: int | None = None) -> NoReturn:
    raise ConfigError([Mistake(place=place or '""', line=line, cause=cause, next_step=next_step)])
