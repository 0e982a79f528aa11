"""What every launcher keeps: this machine, a rank of a user's launcher, real sshd, a real Slurm, and
Kubernetes' API over real HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuproof.campaign.campaign import create_run
from gpuproof.config.load import load_config
from gpuproof.launchers.base import Launched, Launcher
from gpuproof.launchers.kubernetes.site import KubernetesSite
from gpuproof.launchers.local.site import AttachedLauncher, LocalLauncher
from gpuproof.launchers.registry import LAUNCHERS, open_launcher
from gpuproof.launchers.slurm.site import SlurmSite
from gpuproof.records.journal import read_journal
from gpuproof.records.run import Failure, Steps
from gpuproof.store.run import read_case
from gpuproof.suites.cases import build_case
from kubernetes_world import kubernetes_world
from launching import finish, wait_until
from ports import free_ports
from running import LIGHT
from slurm_world import SlurmWorld, needing_slurm, slurm_world
from ssh_hosts import Hosts, hosts_in, processes_with
from sshd import can_serve, ssh_world
from waiting import PATIENCE_S, eventually

SOURCE = Path(__file__).resolve().parents[2] / "src"
TINY = (
    *("--model.name=medium", "--data.name=synthetic", "--data.batch_size=4"),
    *("--benchmark.warmup_steps=1", "--benchmark.measure_by=steps", "--benchmark.measure_steps=5"),
    *("--run.commit_hash=null", "--distributed.device=cpu", "--distributed.threads_per_rank=1"),
    *LIGHT,
)
ENDLESS = "--benchmark.measure_steps=10000000"


@dataclass(kw_only=True)
class Launching:
    """A launcher under test, with a run that it writes into."""

    launcher: Launcher
    folder: Path
    num_ranks: int = 1
    others: dict[str, str] = field(default_factory=dict)
    """The environment of a rank that somebody else starts; none where the launcher starts them all."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    pods: Path | None = None
    """Where pods write, whose files come here at the end alone."""

    def start(self, *words: str, at: int = 0) -> tuple[Launched, Path]:
        """Start a tiny case on one place."""
        number = len(list(self.folder.glob("quick/*")))
        named = (f"--run.save_dir='{self.folder}'", "--run.experiment_name=quick", f"--run.run_id=r{number}")
        loaded = load_config("quick", [*TINY, *named, *words])
        run = create_run(loaded.config, origins=loaded.origins, source=loaded.source)
        case = build_case(loaded.config, 0)
        folder = run.begin_case(case)
        places = [place.name for place in self.launcher.places()[at:]][:1]  # none of a queue
        launched = self.launcher.start(case, places, folder)
        if self.others:
            join = [sys.executable, "-m", "gpuproof.worker", "join", f"--patience-s={PATIENCE_S}"]
            self.started.append(subprocess.Popen(join, env={**os.environ, **self.others}))
        return launched, folder

    def records(self, folder: Path, kind: type[Any]) -> Sequence[Any]:
        """Return what the ranks of a case have written so far, wherever that is while they run.

        Of its spec nothing is read: into a pod it is copied while others look.
        """
        written = folder if self.pods is None else next(self.pods.glob("*/run/cases/main/0"), folder)
        journals = [read_journal(path).records for path in written.glob("rank-*.jsonl")]
        return [record for journal in journals for record in journal if isinstance(record, kind)]


@contextmanager
def local(folder: Path) -> Iterator[Launching]:
    with closing(LocalLauncher()) as launcher:
        yield Launching(launcher=launcher, folder=folder)


@contextmanager
def attached(folder: Path) -> Iterator[Launching]:
    port = str(free_ports())
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environment = {**os.environ, **shared, "RANK": "0"}
    with closing(AttachedLauncher(environment=environment)) as launcher:
        under_test = Launching(launcher=launcher, folder=folder, num_ranks=2, others={**shared, "RANK": "1"})
        yield under_test
        for process in under_test.started:
            process.kill()
            process.wait()


@contextmanager
def ssh(folder: Path) -> Iterator[Launching]:
    if (reason := can_serve()) is not None:
        pytest.skip(reason)
    with ssh_world(folder / "servers", ["127.0.0.2", "127.0.0.3"]) as world:
        hosts: Hosts = hosts_in(world)
        with hosts.launcher([hosts.host(server) for server in world.servers]) as launcher:
            yield Launching(launcher=launcher, folder=folder)
        eventually("clean hosts", lambda: [hosts.left_behind(server) for server in world.servers] == [[], []])


@contextmanager
def kubernetes(folder: Path) -> Iterator[Launching]:
    with kubernetes_world(folder / "cluster") as (world, found_by):
        environment = {**os.environ, **found_by}
        with open_launcher(KubernetesSite(), environment=environment) as launcher:
            yield Launching(launcher=launcher, folder=folder, pods=world.folder)
        eventually("an empty cluster", lambda: world.left() == [])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmWorld]:
    needing_slurm()
    with slurm_world(tmp_path_factory.mktemp("slurm") / "w", num_nodes=2) as world:
        yield world


@contextmanager
def slurm_queue(folder: Path, world: SlurmWorld) -> Iterator[Launching]:
    environment = {**os.environ, **world.environment}
    with open_launcher(SlurmSite(), environment=environment) as launcher:
        yield Launching(launcher=launcher, folder=folder)
    eventually("an empty queue", lambda: world.jobs() == [])


@contextmanager
def slurm_allocation(folder: Path, world: SlurmWorld) -> Iterator[Launching]:
    nodes = {"SLURM_JOB_NODELIST": "n[1-2]"}
    job = world.allocate("--nodes=2", "--exclusive")
    environment = {**os.environ, **world.environment, "SLURM_JOB_ID": job, **nodes}
    site = SlurmSite(hosts=("n1", "n2"))
    try:
        with open_launcher(site, environment=environment) as launcher:
            yield Launching(launcher=launcher, folder=folder)
    finally:
        world.ask("scancel", job)


MEMBERS = {"local": local, "local attached": attached, "ssh": ssh, "kubernetes": kubernetes}
ON_SLURM = {"slurm queue": slurm_queue, "slurm allocation": slurm_allocation}


def member(request: pytest.FixtureRequest, folder: Path) -> AbstractContextManager[Launching]:
    """Give a launcher under test; those on Slurm share one cluster."""
    if request.param in MEMBERS:
        return MEMBERS[request.param](folder)
    return ON_SLURM[request.param](folder, request.getfixturevalue("cluster"))


@pytest.fixture(params=sorted([*MEMBERS, *ON_SLURM]))
def launching(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launching]:
    with member(request, tmp_path) as under_test:
        yield under_test


@pytest.fixture(params=["local", "ssh", "slurm queue"])
def launching_all_ranks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launching]:
    with member(request, tmp_path) as under_test:
        yield under_test


def test_every_launcher_is_under_test() -> None:
    assert set(LAUNCHERS) == {name.split()[0] for name in [*MEMBERS, *ON_SLURM]}


def test_it_offers_places_or_a_queue_and_none_is_lost(launching: Launching) -> None:
    launcher = launching.launcher
    assert isinstance(launcher, Launcher)
    names = [place.name for place in launcher.places()]
    assert names or launcher.max_busy
    assert len(names) == len(set(names))
    assert launcher.lost() == {}
    assert list(launcher.notes()) == []


def test_a_case_is_told_from_its_begin_to_its_last_file(launching: Launching) -> None:
    launched, folder = launching.start()
    launcher = launching.launcher
    wait_until(launcher, "its begin", lambda: launched.placed is not None)
    assert launched.placed is not None
    assert len(launched.placed.hosts) == 1
    assert finish(launcher, launched) == 0
    records = read_case(folder)
    assert (records.status, records.world_size) == ("done", launching.num_ranks)
    shown = (folder / "launch.txt").read_text()
    assert shown == launched.command
    assert "run" in shown
    assert not processes_with(str(folder))


def test_the_end_of_a_case_gives_time_for_last_words(launching: Launching) -> None:
    launched, folder = launching.start(ENDLESS)
    launcher = launching.launcher
    wait_until(launcher, "steps", lambda: launching.records(folder, Steps))
    assert launched.status is None
    launched.end(300.0)
    wait_until(launcher, "the end", lambda: launched.is_over)
    assert launched.status != 0
    (words,) = [told for told in read_case(folder).of(Failure) if told.rank == 0]
    assert (words.cause, words.message) == ("interrupted", "ended by SIGTERM")
    assert not processes_with(str(folder))


def test_a_case_that_fails_ends_with_a_status(launching: Launching) -> None:
    launched, folder = launching.start("--distributed.device=cuda")
    assert finish(launching.launcher, launched) > 0
    assert any(told.cause == "environment" for told in read_case(folder).of(Failure))


def test_news_comes_of_several_launches_at_once(launching_all_ranks: Launching) -> None:
    launcher = launching_all_ranks.launcher
    last = max(0, len(launcher.places()) - 1)
    endless, folder = launching_all_ranks.start(ENDLESS)
    short, _ = launching_all_ranks.start(at=last)
    assert finish(launcher, short) == 0
    assert not endless.is_over
    assert endless.status is None
    endless.end(60.0)
    endless.end(0.5)  # as a second Ctrl-C does
    wait_until(launcher, "the end", lambda: endless.is_over)
    assert not processes_with(str(folder))


def test_several_ranks_on_a_host_meet(launching_all_ranks: Launching) -> None:
    launched, folder = launching_all_ranks.start("--distributed.nproc=2")
    assert finish(launching_all_ranks.launcher, launched) == 0
    assert read_case(folder).world_size == 2
    assert launched.placed is not None
    assert launched.placed.address == "127.0.0.1"
    port = launched.placed.port
    assert f"--master-port={port}" in launched.command or "--master-port=$GPUPROOF_PORT" in launched.command


def test_a_launch_that_is_ended_before_it_began_is_over(tmp_path: Path) -> None:
    with ExitStack() as stack:
        launching = stack.enter_context(ssh(tmp_path))
        launched, _ = launching.start(ENDLESS)
        launched.end(1.0)
        wait_until(launching.launcher, "the end", lambda: launched.is_over)
        assert launched.status != 0
