"""A host that does not see rank 0's disk: have its own copy of the data set prepared.

The node side reads no data set's own files; the control side does, and is installed where `gpuproof run` was
started. So this process starts the control side's command, which writes what it prepares into a folder here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def prepare_own_copy(
    spec: Any, folder: Path, *, run_folder: Path, world_size: int, command: Sequence[str] | None
) -> None:
    """Prepare the data of a case, if it has any, in `run_folder`; `folder` is where its records go.

    What goes wrong is said on standard error. The rank then ends for want of the file, as a record.
    """
    if spec["data"]["file"] is None or command is None:
        return
    written = folder / "spec.json"
    written.write_text(json.dumps(spec), encoding="utf-8")
    result = subprocess.run(
        [*command, str(written), str(run_folder), str(world_size)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        said = (result.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        sys.stderr.write(
            f"gpuproof: this host does not see rank 0's disk, and no copy of its own can be used: {said}\n"
        )
