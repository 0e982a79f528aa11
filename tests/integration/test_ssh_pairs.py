"""Pairs of hosts through the campaign's one scheduler, over real sshd: two at once, then the swapped ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from gpuproof.campaign.campaign import create_run, launch_all
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.launchers.base import HostError
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import RankResult, Setup
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace, LaunchKey, Remaining, launch_key
from gpuproof.suites.cases import build_case, place_case, placed_name
from ssh_hosts import Hosts, hosts_in
from sshd import can_serve, ssh_world

pytestmark = pytest.mark.skipif(can_serve() is not None, reason=str(can_serve()))
TINY = (
    *("--model.name=medium", "--data.name=synthetic", "--data.batch_size=4"),
    *("--benchmark.warmup_steps=1", "--benchmark.measure_by=steps", "--benchmark.measure_steps=20"),
    *("--run.experiment_name=tests", "--run.run_id=r", "--run.commit_hash=null", "--run.repeats=1"),
    *("--distributed.device=cpu", "--distributed.threads_per_rank=1", "--distributed.backend=gloo"),
)
PairState = tuple[tuple[Case, ...], frozenset[LaunchKey]]


class PairsSuite:
    """One job on each pair of neighbours at once, and then with their node ranks swapped."""

    name = "pairs"
    summary = "a job on each pair of hosts"
    command = "run"
    scope: Literal["each_host", "whole"] = "whole"
    options: type | None = None

    def answers(self, config: RunConfig) -> bool:
        return False

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> PairState:
        base = build_case(config, 0, case_id="pair")
        pairs = list(zip(places[::2], places[1::2], strict=True))
        there = [place_case(base, first, second) for first, second in pairs]
        swapped = replace(base, after=tuple(map(launch_key, there)))
        back = [place_case(swapped, second, first) for first, second in pairs]
        return (*there, *back), frozenset()

    def settle(self, state: PairState, launch: CaseRecords) -> PairState:
        return state[0], state[1] | {launch_key(launch.case)}

    def next(
        self, state: PairState, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        for case in state[0]:
            if launch_key(case) not in {*state[1], *running}:
                yield case

    def planned(self, state: PairState) -> Iterator[Case]:
        return self.next(state, {}, None)

    def remaining(self, state: PairState) -> Remaining:
        return Remaining(num_launches=len(state[0]) - len(state[1]))

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        return "skip"

    def conclude(self, evidence: Any) -> Conclusion:
        raise AssertionError("this test launches, and concludes nothing")

    def page(self, result: Any) -> Any:
        raise AssertionError("this test launches, and concludes nothing")


class Events:
    """Remembers in which order launches begin and end."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def says(self, line: str) -> None:
        return

    def case_begins(
        self, case: Case, *, hosts: Sequence[str], position: int, total: int, more: bool = False
    ) -> None:
        assert tuple(hosts) == case.placement.hosts
        self.order.append(f"begin {case.case_id}")

    def case_advances(self, case: Case, records: Sequence[Any]) -> None:
        return

    def case_ends(self, records: CaseRecords) -> None:
        self.order.append(f"end {records.case.case_id}")

    def host_failed(self, error: HostError) -> None:
        raise error


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with ssh_world(tmp_path / "servers", [f"127.0.0.{last}" for last in (2, 3, 4, 5)]) as world:
        yield hosts_in(world)


@pytest.mark.long
def test_two_pairs_at_once_then_the_swapped_ones(hosts: Hosts, tmp_path: Path) -> None:
    servers, events = hosts.world.servers, Events()
    loaded = load_config("quick", [*TINY, f"--run.save_dir='{tmp_path}'"])
    with hosts.launcher([hosts.host(server, interface="lo") for server in servers]) as launcher:
        run = create_run(
            loaded.config, origins=loaded.origins, source=loaded.source, places=launcher.places()
        )
        launch_all(run, suite=PairsSuite(), launcher=launcher, progress=events)
    a, b, c, d = launcher.places()
    there, back = [(a, b), (c, d)], [(b, a), (d, c)]
    assert set(events.order[:2]) == {f"begin {placed_name('pair', *pair)}" for pair in there}
    assert set(events.order[2:4]) == {f"end {placed_name('pair', *pair)}" for pair in there}
    assert set(events.order[4:6]) == {f"begin {placed_name('pair', *pair)}" for pair in back}
    launches = {records.case.case_id: records for records in run.cases()}
    assert {records.status for records in launches.values()} == {"done"}
    for records in launches.values():
        assert sorted(result.rank for result in records.of(RankResult)) == [0, 1]
        assert {setup.backend for setup in records.of(Setup)} == {"gloo"}
    check_where(run, placed_name("pair", a, b), first=servers[0].address, second=servers[1].address)
    check_where(run, placed_name("pair", d, c), first=servers[3].address, second=servers[2].address)
    assert [hosts.left_behind(server) for server in servers] == [[]] * 4


def check_where(run: RunDirectory, case_id: str, *, first: str, second: str) -> None:
    """The first host has node rank 0 and is where the ranks meet; each host's output is kept."""
    folder = run.root / "cases" / case_id / "0"
    placed = json.loads((folder / "placed.json").read_text())
    assert placed["hosts"] == [f'node "{first}"', f'node "{second}"']
    assert (placed["ranks_per_host"], placed["address"]) == (1, first)
    of_first, of_second = (folder / "launch.txt").read_text().split("# on ")[1:]
    assert (
        f"--nnodes=2 --node-rank=0 --nproc-per-node=1 --rdzv-backend=static --master-addr={first}" in of_first
    )
    assert f"--node-rank=1 --nproc-per-node=1 --rdzv-backend=static --master-addr={first}" in of_second
    assert f"--master-port={placed['port']}" in of_second
    assert len(list(folder.glob("launcher-output*.txt"))) == 2
