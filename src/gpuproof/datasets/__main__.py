"""`python -m gpuproof.datasets SPEC RUN_FOLDER WORLD_SIZE`: prepare the data of one case on this host.

Used by a host that does not share rank 0's disk: its worker may not import anything from the control side, so
it starts this command to prepare its own copy.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpuproof.base.errors import GpuproofError
from gpuproof.base.outside import parse_json
from gpuproof.datasets.catalogue import prepare
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json


def main() -> int:
    """Prepare the data required by the case in SPEC; an error prints one paragraph on standard error."""
    spec, run_folder, world_size = sys.argv[1:]
    try:
        case = from_json(Case, parse_json(Path(spec).read_text(encoding="utf-8")), place=spec)
        prepare(case, Path(run_folder), world_size=int(world_size), say=_say)
    except GpuproofError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"gpuproof: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
