"""`python -m gpuproof.worker kubernetes-files`: what the second container of a pod runs.

`hold` keeps the pod, and so its files, until its lease ends or Kubernetes ends it: then, where they were not
fetched yet, for a last while. `send` writes a launch's files to standard output as a tar. The ranks'
container may have been killed for its memory: this one not.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tarfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

SUMMARY = "keep a pod's files, and send them"
LOOK_S = 2.0
"""How often the ranks' end is looked for: one look at a file, so as not to be seen in what is measured."""
LAST_S, LAST_LOOK_S = 30.0, 0.2
"""Time that unfetched files are kept once the pod is to go: a Job deletes the pods that are left as soon as
one was evicted. More than lies between two looks of the launcher, and less than a pod is given."""
SENT = "files.sent"


def main(arguments: Sequence[str]) -> int:
    """Keep a launch's files, or send them."""
    parser = argparse.ArgumentParser(prog="gpuproof.worker kubernetes-files")
    parser.add_argument("what", choices=("hold", "send"))
    parser.add_argument("--folder", type=Path, required=True, help="the launch's folder in the pod")
    parser.add_argument("--lease", type=float, default=600.0, help="seconds after the last new file")
    options = parser.parse_args(arguments)
    if options.what == "hold":
        hold(options.folder, lease_s=options.lease)
    else:
        send(options.folder)
    return 0


def hold(folder: Path, *, lease_s: float) -> None:
    """Wait until nothing in the folder has changed for `lease_s`, or until told to end."""
    is_ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_ended.set())
    left_s, state = lease_s, _state(folder)
    while left_s > 0 and not is_ended.wait(LOOK_S):
        now = _state(folder)
        is_busy = any(folder.glob("task-*.pid"))  # a task takes it away when it ends, unless it was killed
        left_s = lease_s if now != state or is_busy else left_s - LOOK_S
        state = now
    left_s = LAST_S if folder.exists() else 0.0
    while left_s > 0 and not (folder / SENT).exists():
        time.sleep(LAST_LOOK_S)
        left_s -= LAST_LOOK_S


def _state(folder: Path) -> tuple[int, ...]:
    return tuple(sorted(path.stat().st_mtime_ns for path in folder.glob("*"))) if folder.exists() else ()


def send(folder: Path) -> None:
    """Write the launch's files to standard output as a compressed tar, cut off where it still grows."""
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name not in ("spec.json", SENT):
                archive.add(path, arcname=str(path.relative_to(folder)), recursive=False)
    (folder / SENT).touch()
