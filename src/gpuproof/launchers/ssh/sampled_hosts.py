"""Live readings from many hosts: one sampler per host, over the same channel as launches.

In: hosts, and what a sampler should read. Out: the records of each host as they arrive. If a host cannot be
reached, only its own readings stop, and the reason is reported. Nothing is left behind on a host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.launchers.ssh.launch import RemoteLaunch
from gpuproof.launchers.ssh.launcher import SshLauncher
from gpuproof.launchers.ssh.site import SshHosts
from gpuproof.observe.stream import POLL_S, Records, followed
from gpuproof.processes.scratch import scratch_folder
from gpuproof.store import layout

GRACE_S = 1.0


@contextmanager
def sampled_hosts(site: SshHosts, words: Sequence[str]) -> Iterator[dict[str, Records]]:
    """Yield the records from a sampler on each host; it starts when records are first requested.

    Raises:
        UsageError: a key or the known-hosts file cannot be read.
    """
    with scratch_folder() as root, SshLauncher.opened(hosts=site) as launcher:
        folders = {host.name: root / str(number) for number, host in enumerate(site.hosts)}
        yield {name: _sampled(launcher, name, folder, words) for name, folder in folders.items()}


def _sampled(launcher: SshLauncher, host: str, folder: Path, words: Sequence[str]) -> Records:
    folder.mkdir()
    launch = launcher.start_worker(["sample", *words], host, folder)
    try:
        path = folder / layout.LAUNCHER_OUTPUT
        while not path.exists():
            yield from _until_refused(launch, host, folder)
            yield None
            time.sleep(POLL_S)
        with closing(followed(path, is_output=True)) as records:
            for record in records:
                if record is None:
                    yield from _until_refused(launch, host, folder)
                yield record
    finally:
        launch.end(GRACE_S)


def _until_refused(launch: RemoteLaunch, host: str, folder: Path) -> Records:
    """Raise an error with the reason why a sampler exited, which it only does if something is wrong.

    The exit status may arrive before the last output, so nothing is raised until all output has arrived.
    """
    if launch.error is not None:
        raise launch.error
    if launch.is_over or launch.status is not None:
        launch.end(GRACE_S)
        while not launch.is_over:
            yield None
            time.sleep(POLL_S)
        raise EnvironmentUnfitError(_last_words(folder) or "the host or its sampler is gone", place=host)


def _last_words(folder: Path) -> str | None:
    """Return the last output of the sampler that is not a record, or None if there was none."""
    output = folder / layout.LAUNCHER_OUTPUT
    text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("{")]
    return lines[-1].removeprefix("gpuproof: ") if lines else None
