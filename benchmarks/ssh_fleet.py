"""How much time does a fleet cost the controller? Measured on N hosts with a waiting command.

Runs real sshd processes, one per loopback address with its own host key, so the hosts share this machine's
CPUs with the controller, which is harder than in practice. Budgets: the wait plus 0.15 s per host, and at
most twice the CPU time of bare asyncssh connections that run the same command. Needs openssh-server and root.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, process_time

import asyncssh

from gpuproof.campaign.scheduler import FOLLOW_SEVERAL_S
from gpuproof.config.inventory import InventoryHost
from gpuproof.launchers.archive import build_archive
from gpuproof.launchers.ssh.launcher import SshLauncher
from gpuproof.launchers.ssh.site import SshOptions
from pairing import machine_line

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # its servers are from the tests
from sshd import SshWorld, can_serve, ssh_world

BUDGET_S_PER_HOST = 0.15
BUDGET_RATIO = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one side."""

    wall_s: float
    own_cpu_s: float
    """CPU time of this process only, without the servers."""


def main() -> None:
    """Measure both sides and print their cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--wait", type=float, default=20.0, metavar="S", help="how long each command waits")
    parser.add_argument(
        "--repeats", type=int, default=3, help="repeats of both sides, interleaved; medians are compared"
    )
    parser.add_argument("--quick", action="store_true", help="8 hosts that wait 2 s")
    options = parser.parse_args()
    hosts, wait_s = (8, 2.0) if options.quick else (options.hosts, options.wait)
    reason_against = can_serve()
    if reason_against is not None:
        sys.exit(f"cannot measure here: {reason_against}")
    print(machine_line())
    with TemporaryDirectory(prefix="gpuproof-bench-") as folder:
        addresses = [f"127.0.{1 + last // 200}.{2 + last % 200}" for last in range(hosts)]
        with ssh_world(Path(folder) / "servers", addresses) as world:
            costs = [
                (
                    _cost(lambda: asyncio.run(_bare(world, wait_s))),
                    _cost(lambda: _fleet(world, _new_folder(Path(folder)), wait_s)),
                )
                for _ in range(options.repeats)
            ]
    bare, fleet = (_middle(side) for side in zip(*costs, strict=True))
    _print(hosts, wait_s, bare=bare, fleet=fleet)


def _new_folder(parent: Path) -> Path:
    folder = parent / f"fleet-{len(list(parent.glob('fleet-*')))}"
    folder.mkdir()
    return folder


def _middle(costs: Sequence[Cost]) -> Cost:
    return Cost(
        wall_s=median(cost.wall_s for cost in costs), own_cpu_s=median(cost.own_cpu_s for cost in costs)
    )


def _cost(work: Callable[[], None]) -> Cost:
    wall_s, cpu_s = monotonic(), process_time()
    work()
    return Cost(wall_s=monotonic() - wall_s, own_cpu_s=process_time() - cpu_s)


async def _bare(world: SshWorld, wait_s: float) -> None:
    """Connect and run the command with plain asyncssh, on all hosts at once."""

    async def one(address: str, port: int) -> None:
        connecting = asyncssh.connect(
            address, port, known_hosts=str(world.known_hosts), client_keys=[str(world.key)], config=None
        )
        async with connecting as connection:
            await connection.run(f"sleep {wait_s:g}", check=True)

    await asyncio.gather(*(one(server.address, server.port) for server in world.servers))


def _fleet(world: SshWorld, folder: Path, wait_s: float) -> None:
    """Connect, copy the node side to the host, run the command, fetch its files, and clean up."""
    archive = build_archive(folder / "gpuproof-node.pyz").read_bytes()
    hosts = [
        InventoryHost(name=s.address, address=s.address, port=s.port, place="-", python=sys.executable)
        for s in world.servers
    ]
    options = SshOptions(key=str(world.key), known_hosts=str(world.known_hosts))

    with closing(SshLauncher(hosts, options, archive=archive)) as launcher:
        running = []
        for host in hosts:
            (out := folder / host.name).mkdir()
            running.append(launcher.start_command(["sleep", f"{wait_s:g}"], host.name, out))
        ending = set()
        while not all(launched.is_over for launched in running):
            launcher.wait(FOLLOW_SEVERAL_S)
            for launched in running:
                if launched.status is not None and launched not in ending:
                    ending.add(launched)
                    launched.end(1.0)
    assert [launched.status for launched in running] == [0] * len(hosts)


def _print(hosts: int, wait_s: float, *, bare: Cost, fleet: Cost) -> None:
    limit_s = wait_s + BUDGET_S_PER_HOST * hosts
    ratio = fleet.own_cpu_s / bare.own_cpu_s
    print(f"{hosts} hosts whose command waits {wait_s:g} s")
    print(f"  bare asyncssh   {bare.wall_s:6.1f} s, own CPU time {bare.own_cpu_s:.2f} s")
    print(f"  gpuproof        {fleet.wall_s:6.1f} s, own CPU time {fleet.own_cpu_s:.2f} s")
    print(f"  wall clock: at most {limit_s:.1f} s: {_verdict(fleet.wall_s <= limit_s)}")
    within = _verdict(ratio <= BUDGET_RATIO)
    print(f"  CPU time: {ratio:.2f} times bare, at most {BUDGET_RATIO:g}: {within}")


def _verdict(holds: bool) -> str:
    return "WITHIN BUDGET" if holds else "OVER BUDGET"


if __name__ == "__main__":
    main()
