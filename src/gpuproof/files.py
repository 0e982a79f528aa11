"""How are derived files written? JSON arrays, one object a line, aside first and then renamed.

In: a path and an iterator of objects. Out: a whole file or none, without the array ever standing in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpuproof.errors import EnvironmentUnfitError


def write_array(path: Path, objects: Iterable[dict[str, Any]]) -> int:
    """Write the objects as a JSON array; return how many there were.

    Raises:
        EnvironmentUnfitError: the disk is full or the directory cannot be written to.
    """
    count = 0
    with aside(path) as place, place.open("w", encoding="utf-8") as file:
        file.write("[")
        for count, item in enumerate(objects, 1):
            file.write(",\n" if count > 1 else "\n")
            json.dump(item, file, allow_nan=False, ensure_ascii=False)
        file.write("\n]\n")
    return count


def write_text(path: Path, text: str) -> None:
    """Write a text file whole.

    Raises:
        EnvironmentUnfitError: as `write_array`.
    """
    with aside(path) as place:
        place.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Give a name beside `path`, which takes its place if all went well and is removed otherwise.

    Raises:
        EnvironmentUnfitError: as `write_array`.
    """
    place = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield place
        place.replace(path)
    except OSError as error:
        raise EnvironmentUnfitError(error.strerror or str(error), place=str(path)) from error
    finally:
        place.unlink(missing_ok=True)
