"""Print of a file of constraints those of packages that this Python lacks: what it has stays as it is.

A vendor's torch was built against the vendor's own numpy and the like, which ours must not replace.
"""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path


def plain(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


held = {plain(found.metadata["Name"]) for found in distributions() if found.metadata["Name"]}
for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
    if plain(line.partition("==")[0].strip()) not in held:
        sys.stdout.write(f"{line}\n")
