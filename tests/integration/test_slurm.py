"""`--on slurm` on a real Slurm of four nodes: jobs, arrays, and every way in which a job may end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest

from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment, Failure, Start
from integration.conftest import CommandLine, Run
from running import LIGHT, MEASURED, TIMEOUT_S
from slurm_world import SlurmWorld, needing_slurm, slurm_world
from waiting import eventually

ONE_THREAD = "--distributed.threads_per_rank=1"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmWorld]:
    needing_slurm()
    with slurm_world(tmp_path_factory.mktemp("slurm") / "w", slurmd_timeout_s=5) as running:
        yield running


@pytest.fixture
def cluster(world: SlurmWorld, command_line: CommandLine) -> Iterator[SlurmWorld]:
    """The cluster that the command line submits to; each test leaves it without a job."""
    command_line.environment = {**command_line.environment, **world.environment}
    yield world
    eventually("no job in the queue", lambda: not world.jobs())


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A run on a cluster that stops in its first launch, without using a processor, until resumed."""

    run: Run
    words: tuple[str, ...]

    def start(self) -> subprocess.Popen[str]:
        return self.run.start("faulty", *self.words, steps=12, fault="sleep", unless_file=self.marker)

    @property
    def marker(self) -> str:
        return f"marker-{self.run.run_id}"


def asked(a_run: Run, name: str, *words: str, **options: object) -> Asked:
    """Give a run a name of its own, and a file with options for Slurm."""
    run = replace(a_run, run_id=f"{a_run.run_id}_{name}")
    file = run.command_line.folder / f"{name}.yaml"
    file.write_text(json.dumps(options))
    return Asked(run=run, words=(f"--on=slurm:{file}", ONE_THREAD, *LIGHT, *words))


def job_of(run: Run, case: str = "main/0") -> str:
    """Return the job of a launch once it is submitted."""
    path = run.root / "cases" / case / "slurm-job.json"
    eventually("a job", path.exists)
    return str(json.loads(path.read_text())["job"])


def hosts(records: CaseRecords) -> dict[int, str]:
    return {start.rank: start.host for start in records.of(Start)}


def told(records: CaseRecords) -> Failure:
    failure = records.primary_failure
    assert failure is not None
    return failure


def test_ranks_of_four_nodes_are_in_the_order_of_the_nodes(cluster: SlurmWorld, a_run: Run) -> None:
    result = a_run.run("faulty", "--on=slurm", "--distributed.nodes=4", ONE_THREAD, *LIGHT, steps=3)
    assert result.returncode == 0, (result.stderr, cluster.logs())
    records = a_run.case()
    assert records.status == "done"
    assert hosts(records) == {0: "n1", 1: "n2", 2: "n3", 3: "n4"}
    placed = json.loads((a_run.folder() / "placed.json").read_text())
    assert placed["hosts"] == ["n1", "n2", "n3", "n4"]
    assert (a_run.folder() / "launch.txt").read_text().count("#SBATCH") == 6
    assert sorted(path.name for path in a_run.folder().glob("monitor-*")) == [
        f"monitor-{node}.jsonl" for node in cluster.nodes
    ]
    assert list(a_run.root.glob("slurm-*.txt")) == []  # what Slurm said lies with its launch


def test_points_of_a_sweep_are_one_array_with_gpus_masked(cluster: SlurmWorld, a_run: Run) -> None:
    sweep = asked(a_run, "sweep", "--matrix.data.batch_size=[2, 4, 8]", gpus_per_node=2, exclusive=False)
    result = sweep.run.run("faulty", *sweep.words, steps=3)
    assert result.returncode in MEASURED, (result.stderr, cluster.logs())
    cases = sorted((sweep.run.root / "cases").iterdir())
    jobs = [job_of(sweep.run, f"{case.name}/0") for case in cases]
    assert {job.partition("_")[0] for job in jobs} == {jobs[0].partition("_")[0]}
    assert {job.partition("_")[2] for job in jobs} == {"0", "1", "2"}
    for line in (case / "0" / "launch.txt" for case in cases):
        assert "#SBATCH --gpus-per-node=2\n" in line.read_text()
        assert "#SBATCH --array=0-2\n" in line.read_text()
    masks = [mask for case in cases for mask in visible_devices(sweep.run, f"{case.name}/0")]
    assert masks
    assert all(len(mask.split(",")) == 2 for mask in masks)


def visible_devices(run: Run, case: str) -> list[str]:
    """Return what a launch's ranks were told of their GPUs."""
    from gpuproof.store.run import read_case

    facts = [record.facts for record in read_case(run.root / "cases" / case).of(Environment)]
    return [str(known["environment"]["CUDA_VISIBLE_DEVICES"]) for known in facts]


@pytest.mark.long
def test_what_slurm_ends_is_named_and_goes_on_with_resume(cluster: SlurmWorld, a_run: Run) -> None:
    """A time limit, a preemption, a node that dies, a job that somebody cancels: waited for together."""
    limit = asked(a_run, "limit", time=1, exclude="n[2-4]")
    gives_way = asked(a_run, "preempted", exclude="n[1,3-4]")
    dead = asked(a_run, "dead", exclude="n[1-3]")
    gone = asked(a_run, "cancelled", exclude="n[1-2,4]")
    everyone = [limit, gives_way, dead, gone]
    started = [one.start() for one in everyone]
    try:
        for one in everyone:
            marker = one.run.command_line.folder / one.marker
            eventually(f"the last step of {one.run.run_id}", marker.exists)
        cluster.ask("scontrol", "update", f"JobId={job_of(limit.run)}", "EndTime=now+1")
        cluster.ask("scancel", job_of(gone.run))
        cluster.kill_node("n4")
        cluster.ask("srun", "--partition=urgent", "--nodelist=n2", "--exclusive", "true")
        ended = [one.run.command_line.finish(process) for one, process in zip(everyone, started, strict=True)]
    finally:
        for process in started:
            process.kill()
    reasons = [told(one.run.case()) for one in everyone]
    assert [(reason.cause, reason.message.partition(":")[0]) for reason in reasons] == [
        ("interrupted", "time limit"),
        ("interrupted", "preempted"),
        ("lost_rank", "node failure"),
        ("interrupted", "cancelled"),
    ]
    assert [result.returncode for result in ended] == [130, 130, 3, 130], ended
    assert reasons[2].host == "n4"
    assert "n4 (down: Not responding)" in reasons[2].message
    assert [one.run.case().status for one in everyone] == ["unfinished"] * 4
    cluster.start_node("n4")
    cluster.wait_until_idle()
    longer = asked(a_run, "longer", time=5, exclude="n[2-4]")
    again = limit.run.resume(longer.words[0])
    assert again.returncode == 0, (again.stderr, cluster.logs())
    assert "#SBATCH --time=5\n" in (limit.run.folder() / "launch.txt").read_text()
    assert limit.run.statuses() == ["done"]
    (first,) = limit.run.attempts()
    assert told(first).message.startswith("time limit: job")


@pytest.mark.long
def test_an_interrupted_run_leaves_no_job(cluster: SlurmWorld, a_run: Run) -> None:
    many = asked(a_run, "many", "--run.repeats=3", exclude="n[2-4]")
    process = many.run.start("faulty", *many.words, steps=12, fault="sleep")
    job = job_of(many.run).partition("_")[0]
    eventually("a launch that stopped", lambda: list(many.run.root.glob("cases/main/*/rank-0.jsonl")))
    assert sorted(cluster.jobs()) == [f"{job}_0 RUNNING", f"{job}_1 PENDING", f"{job}_2 PENDING"]
    many.run.record(Start)
    process.send_signal(signal.SIGINT)
    result = a_run.command_line.finish(process)
    assert result.returncode == 130, result.stderr
    assert cluster.jobs() == []
    assert many.run.statuses() == ["unfinished"] * 3
    assert "ended by SIGTERM" in {failure.message for failure in many.run.case().of(Failure)}


@pytest.mark.long
def test_a_job_that_a_killed_campaign_left_is_cancelled_when_it_is_resumed(
    cluster: SlurmWorld, a_run: Run
) -> None:
    held = asked(a_run, "held", extra=["--begin=now+1hour"])
    process = held.start()
    left = job_of(held.run)
    process.kill()
    process.communicate()
    assert cluster.jobs() == [f"{left} PENDING"]
    process = held.run.command_line.start("run", "--resume", str(held.run.root))
    eventually("the job of the resumed run", lambda: job_of(held.run) != left)
    assert cluster.jobs() == [f"{job_of(held.run)} PENDING"]
    process.send_signal(signal.SIGINT)
    held.run.command_line.finish(process)


@pytest.mark.parametrize(
    ("options", "words", "code", "message"),
    [
        ({"partition": "nope"}, (), 2, "invalid partition specified: nope"),
        ({"gpus_per_node": 9}, (), 2, "Requested node configuration is not available"),
        (
            {"pending_limit_s": 1.0, "extra": ["--begin=now+1hour"]},
            (),
            5,
            "has not started within 1 s: the queue: BeginTime",
        ),
    ],
)
def test_what_slurm_refuses_is_told_in_its_words(
    cluster: SlurmWorld,
    a_run: Run,
    options: Mapping[str, object],
    words: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    refused = asked(a_run, "refused", *words, **options)
    result = refused.run.run("faulty", *refused.words, steps=3)
    assert result.returncode == code, (result.stdout, result.stderr)
    said = " ".join(f"{result.stdout} {result.stderr}".split())
    assert message in said
    assert "Traceback" not in said
    assert cluster.jobs() == []


def test_inside_an_allocation_its_nodes_are_hosts_and_nothing_is_submitted(
    cluster: SlurmWorld, a_run: Run
) -> None:
    words = a_run.words("faulty", "--on=slurm", "--one-job", ONE_THREAD, steps=3)
    gpuproof = [sys.executable, "-m", "gpuproof", *words]
    result = subprocess.run(
        ["salloc", "--nodes=2", "--exclusive", *gpuproof],
        cwd=a_run.command_line.folder,
        env=a_run.command_line.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, (result.stderr, cluster.logs())
    assert hosts(a_run.case()) == {0: "n1", 1: "n2"}
    again = a_run.resume()
    assert again.returncode == 2
    assert "the run uses nodes of an allocation, and n1, n2 are not in this one" in again.stderr


def test_a_task_a_rank_of_the_users_own_srun(cluster: SlurmWorld, a_run: Run) -> None:
    words = a_run.words("faulty", ONE_THREAD, steps=3)
    meeting = {"MASTER_ADDR": "127.0.0.1"}  # the nodes' names are not known to this machine
    result = subprocess.run(
        ["srun", "--nodes=2", "--ntasks-per-node=1", sys.executable, "-m", "gpuproof", *words],
        cwd=a_run.command_line.folder,
        env={**a_run.command_line.environment, **meeting},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, (result.stderr, cluster.logs())
    assert hosts(a_run.case()) == {0: "n1", 1: "n2"}
    assert result.stdout.count("faulty training on synthetic") == 1
