"""Define where every file of a run is stored; each name and path is defined once.

    <save_dir>/<experiment>/<run_id>/ run.json                     the request, with the origin of every value
      result.json                  the result data/                        samples prepared for the node side
      cases/<case>/<replicate>/    spec.json placed.json launch.txt launcher.jsonl rank-N.jsonl stderr-N.txt

All other files are derived from these and can be recreated.
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
"""The command that was started, in a form that can be pasted into a shell."""
LAUNCHER_JOURNAL = "launcher.jsonl"
LAUNCHER_OUTPUT = "launcher-output.txt"
"""Output of the started processes, apart from the stderr of the ranks."""
RANK_JOURNAL = re.compile(r"rank-(0|[1-9][0-9]{0,6})\.jsonl")
NO_NAME = re.compile(r"[/\x00]")
LONGEST_HOST = 200
ASIDE = ".attempt-"
"""Suffix of an attempt that did not finish, followed by a number."""
DAMAGED = ".damaged"
"""Suffix of a journal that cannot be read."""


def launch_path(case_id: str, replicate: int) -> str:
    """Return the folder of a launch relative to the run directory, the same here and on any host.

    >>> launch_path("main", 2)
    'cases/main/2'
    """
    return f"{CASES}/{case_id}/{replicate}"


def run_folder(launch_folder: Path) -> Path:
    """Return the run directory that contains a launch's folder."""
    return launch_folder.parents[2]


def rank_journal(folder: Path, rank: int) -> Path:
    """Return where a launch's rank writes its records."""
    return folder / f"rank-{rank}.jsonl"


def rank_journals(folder: Path) -> list[Path]:
    """Return the existing journals of a launch's ranks, ordered by rank."""
    matches = {path: RANK_JOURNAL.fullmatch(path.name) for path in folder.glob("rank-*.jsonl")}
    ranks = {path: int(named[1]) for path, named in matches.items() if named is not None}
    return sorted(ranks, key=ranks.__getitem__)


def recording_name(host: str) -> str:
    """Return the file name of the recording of a host's devices; `host` is its name without slashes."""
    return f"monitor-{NO_NAME.sub('_', host)[:LONGEST_HOST]}.jsonl"
