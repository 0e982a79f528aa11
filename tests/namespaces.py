"""Hosts with links of their own: network namespaces on a bridge, made and removed by a test.

The bridge has a namespace too, in which the controller runs; addresses are of the benchmark range
198.18.0.0/15. Names carry this process's number, so that two test runs do not meet. Needs root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Links:
    """A bridge with as many hosts as were asked for, numbered from 1."""

    mark: str

    @property
    def controller(self) -> tuple[str, ...]:
        """What goes before a command of the controller's."""
        return ("ip", "netns", "exec", f"gpsw{self.mark}")

    def on_host(self, number: int) -> tuple[str, ...]:
        """What goes before a command of a host's."""
        return ("ip", "netns", "exec", f"gp{self.mark}n{number}")

    def address(self, number: int) -> str:
        """A host's address."""
        return f"198.18.7.{number}"

    def cut(self, number: int) -> None:
        """Pull a host's cable."""
        run(*self.controller, "ip", "link", "set", f"p{number}", "down")

    def slow_down(self, number: int, rate: str) -> None:
        """Let so much through, in both directions."""
        shape = ("root", "tbf", "rate", rate, "burst", "16k", "latency", "400ms")
        run(*self.on_host(number), "tc", "qdisc", "add", "dev", "v", *shape)
        run(*self.controller, "tc", "qdisc", "add", "dev", f"p{number}", *shape)


@contextmanager
def linked_hosts(count: int) -> Iterator[Links]:
    """Give a bridge with hosts; remove all of it afterwards."""
    links = Links(mark=str(os.getpid()))
    spaces = [links.controller[-1], *(links.on_host(number)[-1] for number in range(1, count + 1))]
    try:
        for space in spaces:
            run("ip", "netns", "add", space)
            run("ip", "netns", "exec", space, "ip", "link", "set", "lo", "up")
        switch = spaces[0]
        run(*links.controller, "ip", "link", "add", "br0", "type", "bridge")
        run(*links.controller, "ip", "link", "set", "br0", "up")
        run(*links.controller, "ip", "addr", "add", "198.18.7.100/24", "dev", "br0")
        for number, space in enumerate(spaces[1:], 1):
            peer = ("type", "veth", "peer", "name", f"p{number}", "netns", switch)
            run("ip", "link", "add", "v", "netns", space, *peer)
            run(*links.controller, "ip", "link", "set", f"p{number}", "master", "br0", "up")
            run(*links.on_host(number), "ip", "addr", "add", f"{links.address(number)}/24", "dev", "v")
            run(*links.on_host(number), "ip", "link", "set", "v", "up")
        yield links
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def run(*command: str) -> None:
    """Run a command that must work."""
    done = subprocess.run(list(command), capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def can_link() -> str | None:
    """Say why there can be no namespaces here; None where there can."""
    missing: Sequence[str] = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed (iproute2)"
    return None if os.geteuid() == 0 else "network namespaces need root"
