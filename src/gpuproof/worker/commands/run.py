"""`python -m gpuproof.worker run SPEC OUT`: one rank of a case, as a launcher asks for it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gpuproof.records.case import Case
from gpuproof.records.codec import from_json
from gpuproof.worker.rank.assignment import Assignment, run_assignment
from gpuproof.worker.rank.identity import identity_from


def main(arguments: Sequence[str]) -> NoReturn:
    """Run one rank as the launcher asks."""
    parser = argparse.ArgumentParser(prog="gpuproof.worker run", description=__doc__)
    parser.add_argument("spec", type=Path, metavar="SPEC", help="the case, as JSON")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder for this replicate's files")
    parser.add_argument("--parent-pid", type=int, help="end when this process of the same host is gone")
    parser.add_argument(
        "--attached",
        type=int,
        metavar="N",
        help="give the case to the other ranks of a launcher not ours, as the Nth launch from 0",
    )
    parser.add_argument("--forked", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    spec = json.loads(options.spec.read_text(encoding="utf-8"))
    assignment = Assignment(
        case=from_json(Case, spec, place=str(options.spec)),
        identity=identity_from(os.environ),
        folder=options.out,
        run_folder=options.out.parents[2],
        parent_pid=options.parent_pid,
        start="fork" if options.forked else "exec",
    )
    if options.attached is not None and assignment.identity.world_size > 1:
        from gpuproof.worker.commands.attach import lead

        lead(assignment, spec, launch=options.attached)
    run_assignment(assignment)
