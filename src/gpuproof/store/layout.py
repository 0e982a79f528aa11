"""Where everything of a run lies: each name and each path, once.

    <save_dir>/<experiment>/<run_id>/
      run.json                     what was asked, with the origin of every value
      result.json                  what it came to
      data/                        samples prepared for the node side
      cases/<case>/<replicate>/    spec.json placed.json launch.txt launcher.jsonl rank-N.jsonl stderr-N.txt

All other files are derived from these and may be made again.
"""

from __future__ import annotations

import re
from pathlib import Path

DESCRIPTION = "run.json"
RESULT = "result.json"
ENVIRONMENT = "environment.json"
LOCK = ".lock"
CASES = "cases"
SPEC = "spec.json"
PLACED = "placed.json"
LAUNCH_TEXT = "launch.txt"
"""What was started, as a person could type it."""
LAUNCHER_JOURNAL = "launcher.jsonl"
LAUNCHER_OUTPUT = "launcher-output.txt"
"""What the started processes printed before each rank had a file of its own."""
RANK_JOURNAL = re.compile(r"rank-(0|[1-9][0-9]{0,6})\.jsonl")
NO_NAME = re.compile(r"[/\x00]")
LONGEST_HOST = 200
ASIDE = ".attempt-"
"""Ends the name of an attempt that did not finish, with a number after it."""
DAMAGED = ".damaged"
"""Ends the name of a journal that cannot be read."""


def launch_path(case_id: str, replicate: int) -> str:
    """Return where a launch keeps its files, relative to the run directory, here and on any host.

    >>> launch_path("main", 2)
    'cases/main/2'
    """
    return f"{CASES}/{case_id}/{replicate}"


def run_folder(launch_folder: Path) -> Path:
    """Return the run directory that a launch's folder lies in."""
    return launch_folder.parents[2]


def rank_journal(folder: Path, rank: int) -> Path:
    """Return where a rank of a launch writes its records."""
    return folder / f"rank-{rank}.jsonl"


def rank_journals(folder: Path) -> list[Path]:
    """Return the journals of a launch's ranks that there are, in the order of the ranks."""
    matches = {path: RANK_JOURNAL.fullmatch(path.name) for path in folder.glob("rank-*.jsonl")}
    ranks = {path: int(named[1]) for path, named in matches.items() if named is not None}
    return sorted(ranks, key=ranks.__getitem__)


def recording_name(host: str) -> str:
    """Name the recording of a host's devices; `host` is what it calls itself, which no slash is part of."""
    return f"monitor-{NO_NAME.sub('_', host)[:LONGEST_HOST]}.jsonl"
