"""Joining a launcher that is not ours: a user's torchrun or srun, or RANK and WORLD_SIZE set by hand.

Rank 0 was started by `gpuproof run` and holds the case; it hands the case to the other ranks over the
store at MASTER_ADDR. A rank that sees rank 0's folder (same host, shared disk) writes its journal there;
any other keeps it in a temporary folder and gives it to rank 0 at the end.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json
from gpuproof.worker.assignment import Assignment, run_assignment
from gpuproof.worker.identity import identity_from

JOIN_TIMEOUT_S = 300.0
GATHER_TIMEOUT_S = 60.0
SHARED = "shared"


def lead(assignment: Assignment, spec: Any) -> NoReturn:
    """Hand the case to the other ranks, run rank 0 of it, and bring their journals home."""
    store = _open_store()
    store.set("assignment", json.dumps({"spec": spec, "folder": str(assignment.folder.resolve())}))
    world_size = assignment.identity.world_size

    def gather(journal: Path) -> None:
        for rank in range(1, world_size):
            store.wait([f"journal/{rank}"], timedelta(seconds=GATHER_TIMEOUT_S))
            content = store.get(f"journal/{rank}").decode()
            if content != SHARED:
                journal.with_name(f"rank-{rank}.jsonl").write_text(content, encoding="utf-8")

    run_assignment(replace(assignment, store=store, on_done=gather))


def join(_arguments: Sequence[str]) -> NoReturn:
    """`python -m gpuproof.worker join`: wait for rank 0's case, then run this rank of it."""
    identity = identity_from(os.environ)
    store = _open_store()
    message = json.loads(store.get("assignment"))
    folder = Path(message["folder"])
    shared = _sees(folder, message["spec"])
    if not shared:
        folder = Path(tempfile.mkdtemp(prefix="gpuproof-")) / "case" / "replicate"
        folder.mkdir(parents=True)
        sys.stderr.write(f"gpuproof: rank {identity.rank} keeps its records in {folder} until the end\n")

    def hand_over(journal: Path) -> None:
        store.set(f"journal/{identity.rank}", SHARED if shared else journal.read_text(encoding="utf-8"))

    run_assignment(
        Assignment(
            case=from_json(Case, message["spec"], place="rank 0's case"),
            identity=identity,
            folder=folder,
            run_folder=folder.parents[2],
            parent_pid=None,
            store=store,
            on_done=hand_over,
        )
    )


def _open_store() -> Any:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise EnvironmentUnfitError(
            f"WORLD_SIZE is set and {' and '.join(missing)} is not",
            place="environment",
            next_step="Set them to the host and a free port of rank 0, the same for all ranks",
        )
    from torch.distributed.distributed_c10d import PrefixStore

    from gpuproof.worker.distributed import open_store

    return PrefixStore("gpuproof-case", open_store(JOIN_TIMEOUT_S))


def _sees(folder: Path, spec: Any) -> bool:
    try:
        return bool(json.loads((folder / "spec.json").read_text(encoding="utf-8")) == spec)
    except (OSError, ValueError):
        return False
