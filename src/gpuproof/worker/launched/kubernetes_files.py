"""`python -m gpuproof.worker kubernetes-files`: runs in the second container of a pod.

`hold` keeps the pod, and thus its files, until its lease ends or Kubernetes terminates it. In the latter
case, if the files have not been fetched yet, it keeps them for a final grace period. `send` writes a launch's
files to standard output as a tar archive. The container with the ranks may have been OOM-killed, but this
container was not.
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

SUMMARY = "store a pod's files, and send them"
LOOK_S = 2.0
"""Interval for checking whether the ranks have ended: each check looks at a few files, too briefly to affect
the measurement."""
LAST_S, LAST_LOOK_S = 30.0, 0.2
"""How long unfetched files are kept once the pod has to end, because a Job deletes its remaining pods as soon
as one of them is evicted. This is longer than the launcher's polling interval, and shorter than a pod's grace
period."""
SENT = "files.sent"


def main(arguments: Sequence[str]) -> int:
    """Keep a launch's files available, or send them."""
    parser = argparse.ArgumentParser(prog="gpuproof.worker kubernetes-files")
    parser.add_argument("what", choices=("hold", "send"))
    parser.add_argument("--folder", type=Path, required=True, help="the launch's folder in the pod")
    parser.add_argument("--lease", type=float, default=600.0, help="seconds to wait after the last new file")
    options = parser.parse_args(arguments)
    if options.what == "hold":
        hold(options.folder, lease_s=options.lease)
    else:
        send(options.folder)
    return 0


def hold(folder: Path, *, lease_s: float) -> None:
    """Wait until nothing in the folder has changed for `lease_s`, or until asked to stop."""
    is_ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_ended.set())
    left_s, state = lease_s, _state(folder)
    while left_s > 0 and not is_ended.wait(LOOK_S):
        now = _state(folder)
        is_busy = any(folder.glob("task-*.pid"))  # a task removes the file on exit, unless it was killed
        left_s = lease_s if now != state or is_busy else left_s - LOOK_S
        state = now
    left_s = LAST_S if folder.exists() else 0.0
    while left_s > 0 and not (folder / SENT).exists():
        time.sleep(LAST_LOOK_S)
        left_s -= LAST_LOOK_S


def _state(folder: Path) -> tuple[int, ...]:
    return tuple(sorted(path.stat().st_mtime_ns for path in folder.glob("*"))) if folder.exists() else ()


def send(folder: Path) -> None:
    """Write the launch's files to standard output as a compressed tar, truncating growing files."""
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name not in ("spec.json", SENT):
                archive.add(path, arcname=str(path.relative_to(folder)), recursive=False)
    (folder / SENT).touch()
