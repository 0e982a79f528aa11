"""`gpuproof validate --prolog`: one node, one line, one code; and its wrappers on a real Slurm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode
from running import clean_environment, gpuproof
from simulating import needs_simulator, simulated
from slurm_world import SlurmWorld, needing_slurm, slurm_world
from waiting import eventually

SHORT = (
    *("--validate.gemm_size=128", "--validate.window_s=0.3", "--distributed.threads_per_rank=1"),
    *("--validate.stages=[gemm]", "--rules", "rules.yaml", "--time-budget", "500s"),
)
RULES = """
rules:
  - name: it multiplies
    each: gpu
    measure: {name: throughput, labels: {workload: gemm, at_once: false}}
    expect: {at_least: 0.5e+9, unit: FLOP/s}
"""


@needs_simulator
def test_a_wrong_device_of_the_node_fails_the_gate_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "tmp").mkdir()
    rates = {"flops_per_s": 1e9, "flops_16bit_per_s": 1e9}
    environment = simulated({0: {"wrong_products_from": 1}}, devices=1, **rates)
    others = {"RANK": "1", "WORLD_SIZE": "4", "SLURM_JOB_ID": "7", "TMPDIR": str(tmp_path / "tmp")}
    found = gpuproof(
        *("validate", "--prolog", "--device", "simgpu", *SHORT),
        cwd=tmp_path,
        environment={**environment, **others},
    )
    assert found.returncode == ExitCode.FAILED, found.stdout + found.stderr
    (line,) = found.stdout.splitlines()
    assert line.startswith("gpuproof: SIMULATED NOT-READY: [node_problem] GPU 0 (SIM-0000): ")
    assert [path.name for path in tmp_path.iterdir() if path.name != "tmp"] == ["rules.yaml"]
    assert not list((tmp_path / "tmp").glob("gpuproof-gate-*"))


def test_devices_that_somebody_uses_are_left_alone(tmp_path: Path) -> None:
    found = gpuproof(
        *("validate", "--prolog", "--time-budget", "30m"),
        cwd=tmp_path,
        environment=clean_environment(GPUPROOF_FAKE_DEVICES="2"),
    )
    assert found.returncode == ExitCode.UNFIT_ENVIRONMENT, found.stderr
    assert found.stdout.startswith("gpuproof: could not judge: [user_problem] 1 processes use Fake device")


@pytest.mark.parametrize("words", [("--on", "slurm"), ("--soak", "1h"), ("--time-budget", "5s")])
def test_what_a_gate_cannot_be_asked_is_refused(words: tuple[str, ...], tmp_path: Path) -> None:
    found = gpuproof("validate", "--prolog", *words, cwd=tmp_path)
    assert (found.returncode, found.stdout) == (ExitCode.USAGE, ""), found.stdout


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmWorld]:
    needing_slurm()
    with slurm_world(tmp_path_factory.mktemp("gate") / "w", num_nodes=1, slurmd_timeout_s=300) as running:
        yield running


STANDS_IN = """#!/bin/sh
echo "$* $SLURMD_NODENAME" >> {folder}/called
echo "gpuproof: told by the gate"
exit $(cat {folder}/code)
"""


@pytest.fixture
def gate(world: SlurmWorld, tmp_path: Path) -> Iterator[Path]:
    """A folder for wrappers of something that ends with the code in it, and is called by Slurm's node."""
    (tmp_path / "gpuproof").write_text(STANDS_IN.format(folder=tmp_path))
    (tmp_path / "gpuproof").chmod(0o755)
    plain = (world.folder / "slurm.conf").read_text()
    yield tmp_path
    (world.folder / "slurm.conf").write_text(plain)
    world.ask("scontrol", "reconfigure")


def wrapped(kind: str, gate: Path) -> Path:
    """Write a wrapper as a user would."""
    folder = gate / kind
    words = ("--for", kind, "-o", str(folder), "--gpuproof", str(gate / "gpuproof"))
    made = gpuproof("init", "prolog", *words, cwd=gate)
    assert made.returncode == 0, made.stderr
    assert os.access(folder / f"gpuproof-{kind}.sh", os.X_OK)
    return folder / f"gpuproof-{kind}.sh"


def configure(world: SlurmWorld, *lines: str) -> None:
    path = world.folder / "slurm.conf"
    path.write_text("\n".join([path.read_text(), *lines, ""]))
    world.ask("scontrol", "reconfigure")


def node(world: SlurmWorld) -> tuple[str, str]:
    """Return the state of the node and the reason for it."""
    state, _, reason = world.ask("sinfo", "--Node", "--noheader", "--format=%T|%E").strip().partition("|")
    return state, reason.splitlines()[0]


def test_slurm_starts_jobs_unless_the_gate_measured_a_failure(world: SlurmWorld, gate: Path) -> None:
    configure(world, f"Prolog={wrapped('slurm-prolog', gate)}", "PrologFlags=Alloc")
    (gate / "code").write_text("4")

    def called() -> bool:
        """Say whether a node that may have been reconfigured only since has called the gate for a job."""
        assert world.ask("srun", "-n1", "echo", "begun") == "begun\n"
        return (gate / "called").exists()

    eventually("a prolog", called)
    assert set((gate / "called").read_text().splitlines()) == {"validate --prolog n1"}
    (gate / "code").write_text("3")
    job = world.ask("sbatch", "--parsable", "--output=/dev/null", "--wrap=true").strip()
    eventually("a drained node", lambda: "drain" in node(world)[0])
    assert node(world)[1] == "Prolog error"
    world.ask("scancel", job)
    eventually("no job", lambda: not world.jobs())
    world.ask("scontrol", "update", "NodeName=n1", "State=RESUME")
    world.wait_until_idle()


def test_an_epilog_drains_after_the_job_and_a_health_check_says_how(world: SlurmWorld, gate: Path) -> None:
    health = wrapped("slurm-health", gate)
    said = gate / "said"
    health.write_text(health.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\nexec > {said}\n", 1))
    configure(
        world,
        f"Epilog={wrapped('slurm-epilog', gate)}",
        f"HealthCheckProgram={health}",
        "HealthCheckInterval=1",
    )
    (gate / "code").write_text("3")

    def whole() -> str | None:
        """Return what it said, unless it is about to say more: each health check begins the file again."""
        text = said.read_text()
        return text if "to drain it" in text and text.endswith("\n") else None

    text = eventually("a health check", whole)
    assert text is not None
    assert text.splitlines() == [
        "gpuproof: told by the gate",
        'to drain it: scontrol update NodeName=n1 State=DRAIN Reason="gpuproof: told by the gate"',
    ]
    assert "drain" not in node(world)[0]  # nothing is drained by it
    assert world.ask("srun", "-n1", "echo", "begun") == "begun\n"
    eventually("a drained node", lambda: "drain" in node(world)[0])
    assert node(world)[1] == "Epilog error"
    world.ask("scontrol", "update", "NodeName=n1", "State=RESUME")
