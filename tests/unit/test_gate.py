"""A gate before jobs: its line and its code, the nodes that a validation would drain, and its wrappers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from gpuproof.base.errors import ExitCode
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.cli.init import WRAPPERS, gate_script, wrapper_files
from gpuproof.cli.main import cli
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Actor, Judged, Outcome
from gpuproof.records.run import DeviceSharing, FailureCause, Window
from gpuproof.suites.validate.gate import gate_code, gate_line
from gpuproof.suites.validate.nodes import drain_lines, nodes_to_drain
from records_by_hand import failure, start
from validation_by_hand import FLOOR, done, recipe, walk, written

SHELL = {"PATH": os.environ["PATH"]}


def judged(subject: str, *, by: Actor = "vendor", status: str = "FAIL", required: bool = True) -> Judged:
    told: dict[str, Any] = {"measured": "7 wrong\nelements", "expected": "none", "source": "a test"}
    if status == "ERROR":
        told = {"reason": "nobody knows"}
    outcome = Outcome(status=status, subject=subject, next_step="look", responsible=by, **told)  # type: ignore[arg-type]
    return Judged(name="products", outcome=outcome, is_required=required)


def test_nodes_that_failed_are_listed_with_who_is_to_act() -> None:
    found = nodes_to_drain(
        [
            judged("host/a/gpu/GPU-1"),
            judged("host/a", by="user"),
            judged("host/b", by="user"),
            judged("link/host/c/gpu/1>host/c/gpu/2", by="administrator"),
            judged("link/d>e"),  # between two nodes, and of neither
            judged("whole"),
            judged("host/f", status="ERROR"),
            judged("host/g", required=False),
        ],
        {"host/a/gpu/GPU-1": 3},
    )
    assert [(each.node, each.problem, len(each.findings)) for each in found] == [
        ("a", "node_problem", 2),
        ("b", "user_problem", 1),
        ("c", "node_problem", 1),
    ]
    assert found[0].reason == (
        "[node_problem] gpuproof: GPU 3 (GPU-1): products: 7 wrong elements, expected none (and 1 more)"
    )


def test_what_would_drain_is_one_word_of_the_shell_whatever_is_in_it() -> None:
    (entry,) = nodes_to_drain([judged("host/n1")], {})
    wild = replace(entry, reason='[node_problem] it\'s $(reboot) `x` "y"')
    (line,) = drain_lines([wild])
    shown = line.replace("scontrol", "printf '%s|'", 1)
    said = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, env=SHELL, check=True).stdout
    assert said.split("|")[:4] == ["update", "NodeName=n1", "State=DRAIN", f"Reason={wild.reason}"]


def concluded(folder: Path, end: Callable[[Case], CaseRecords] = done, **validate: Any) -> Concluded:
    config = recipe(validate=validate)
    return conclude(written(folder, walk(config, end=end), config))


def test_a_ready_node_passes_the_gate_and_drains_nothing(tmp_path: Path) -> None:
    result = concluded(tmp_path).result
    assert (gate_code(result), gate_line(result).partition(":")[0]) == (ExitCode.DONE, "READY")
    assert not list(tmp_path.rglob("drain.*"))


def test_a_slow_node_fails_the_gate_and_is_on_the_list(tmp_path: Path) -> None:
    floor = {**FLOOR, "each": "host", "measure": {"name": "bus bandwidth", "labels": {"stage": "collective"}}}
    floor["expect"] = {"at_least": 9e11, "unit": "B/s"}
    found = concluded(tmp_path, rules=[floor])
    assert gate_code(found.result) is ExitCode.FAILED
    assert gate_line(found.result).startswith("NOT-READY: [node_problem] training is fast: ")
    (path,) = tmp_path.rglob("drain.json")
    (node,) = json.loads(path.read_text())["nodes"]
    assert (node["node"], node["problem"]) == ("node1", "node_problem")
    assert "scontrol update NodeName=node1 State=DRAIN" in path.with_suffix(".txt").read_text()
    assert any(section.title.startswith("To drain") for section in found.page.sections)


def test_what_others_slowed_is_an_error_and_no_failure(tmp_path: Path) -> None:
    others = DeviceSharing(other_processes=2, other_memory_bytes=None, missing="not told")

    def end(case: Case) -> CaseRecords:
        launch = done(case, step_s=1.0)
        records = (replace(x, neighbours=others) if isinstance(x, Window) else x for x in launch.records)
        return replace(launch, records=tuple(records))

    alone = concluded(tmp_path / "alone", end=lambda case: done(case, step_s=1.0))
    beside = concluded(tmp_path / "beside", end=end)
    assert (gate_code(alone.result), gate_code(beside.result)) == (ExitCode.FAILED, ExitCode.INCONCLUSIVE)
    assert "it cannot be determined which of the two is at fault" in " ".join(
        beside.result.detail["readiness"]["reasons"]
    )


@pytest.mark.parametrize(
    ("cause", "code"),
    [("interrupted", ExitCode.TIMEOUT), ("lost_rank", ExitCode.INCONCLUSIVE), ("exception", ExitCode.FAILED)],
)
def test_what_could_not_be_judged_never_has_the_code_of_a_failure(
    cause: FailureCause, code: ExitCode, tmp_path: Path
) -> None:
    def end(case: Case) -> CaseRecords:
        return CaseRecords(case=case, records=(start(), failure(cause, next_step="look")))

    result = concluded(tmp_path, end=end).result
    assert gate_code(result) is code
    assert "\n" not in gate_line(result)


STANDS_IN = """#!/bin/sh
echo "gpuproof: the line of $*"
echo noise >&2
exit {code}
"""


def run_gate(kind: str, folder: Path, code: int | None, *, fail_closed: bool = False) -> tuple[int, str]:
    """Run a wrapper as whoever starts jobs would, with something that ends like gpuproof in its place."""
    command = folder / "gpuproof"
    if code is not None:
        command.write_text(STANDS_IN.format(code=code))
        command.chmod(0o755)
    script = gate_script(kind, command=str(command), options=["--baseline", "a b"], fail_closed=fail_closed)
    made = wrapper_files(kind, script, image="i", gpus=8)
    words = ["sh", "-c", script]
    if kind == "kubernetes-init":
        (container,) = YAML(typ="safe").load(made["gpuproof-kubernetes-init.yaml"])["initContainers"]
        words = [*container["command"], *container["args"]]
    ended = subprocess.run(words, capture_output=True, text=True, env={}, cwd=folder, timeout=300)
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("kind", WRAPPERS)
def test_wrappers_fail_on_3_and_let_pass_what_could_not_be_judged(kind: str, tmp_path: Path) -> None:
    unjudged = 2 if kind == "node-problem-detector" else 0
    codes = {0: 0, 1: unjudged, 3: 1, 4: unjudged, 5: unjudged, 124: unjudged, 130: unjudged}
    found = {code: run_gate(kind, tmp_path, code) for code in codes}
    assert {code: status for code, (status, _) in found.items()} == codes
    assert {said.splitlines()[0] for _, said in found.values()} == {
        "gpuproof: the line of validate --prolog --baseline a b"
    }
    closed = {code: run_gate(kind, tmp_path, code, fail_closed=True)[0] for code in (0, 1, 4, 5, 124)}
    assert closed == {0: 0, 1: 1, 4: 1, 5: 1, 124: 1}
    (tmp_path / "gpuproof").unlink()
    status, said = run_gate(kind, tmp_path, None)  # it is not installed there
    assert (status, "exit code 127" in said) == (unjudged, True)


def test_only_the_health_check_says_how_to_drain(tmp_path: Path) -> None:
    told = [kind for kind in WRAPPERS if "scontrol update" in run_gate(kind, tmp_path, 3)[1]]
    assert told == ["slurm-health"]


def test_the_plug_in_of_node_problem_detector_names_its_script() -> None:
    script = gate_script("node-problem-detector", command="gpuproof", options=(), fail_closed=False)
    made = wrapper_files("node-problem-detector", script, image="", gpus=0)
    config = json.loads(made["gpuproof-node-problem-detector.json"])
    (rule,) = config["rules"]
    assert rule["path"].endswith("/gpuproof-node-problem-detector.sh")
    assert config["plugin"] == "custom"


def test_a_wrapper_goes_to_the_file_that_is_named_and_several_lie_in_one_folder(tmp_path: Path) -> None:
    def write(kind: str, to: str) -> tuple[int, str]:
        ended = CliRunner().invoke(cli, ["init", "prolog", "--for", kind, "-o", str(tmp_path / to)])
        return ended.exit_code, str(ended.exception)

    assert write("slurm-prolog", "x/prolog.sh")[0] == 0
    assert os.access(tmp_path / "x/prolog.sh", os.X_OK)
    for kind in WRAPPERS:
        assert write(kind, "all")[0] == 0
    names = {path.name for path in (tmp_path / "all").iterdir()}
    assert names == {
        *(f"gpuproof-{kind}.sh" for kind in WRAPPERS if kind != "kubernetes-init"),
        *("gpuproof-kubernetes-init.yaml", "gpuproof-node-problem-detector.json"),
    }
    for kind in ("node-problem-detector", "kubernetes-init"):
        code, cause = write(kind, "y/gate.sh")
        assert code != 0
        assert "Name a folder for it" in cause
    assert not (tmp_path / "y").exists()


def test_the_init_container_writes_to_volumes_alone_and_asks_for_what_it_takes() -> None:
    script = gate_script("kubernetes-init", command="gpuproof", options=(), fail_closed=False)
    (text,) = wrapper_files("kubernetes-init", script, image="i", gpus=4).values()
    pod = YAML(typ="safe").load(text)
    (container,) = pod["initContainers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["resources"]["requests"] == {"cpu": 4, "memory": "16Gi"}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"gpuproof-tmp": "/tmp", "gpuproof-shm": "/dev/shm"}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts)
    assert {"name": "HOME", "value": "/tmp"} in container["env"]


NEVER_ENDS = """
import threading
from pathlib import Path
from gpuproof.cli.gates.prolog import _ending
with _ending(0.2, Path({folder!r})):
    threading.Event().wait()
"""


def test_a_gate_that_would_never_end_ends_at_its_time(tmp_path: Path) -> None:
    left = tmp_path / "run"
    left.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", NEVER_ENDS.format(folder=str(left))],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ended.returncode, left.exists()) == (ExitCode.TIMEOUT, False)
    assert ended.stdout.startswith("gpuproof: could not judge: the time limit passed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--time-budget", "2m"], "Set at most 45s"),
        (["--time-budget=46s"], "Set at most 45s"),
        (["--basline", "x.json"], "Perhaps you mean --baseline"),
        (["--dry-run"], "Omit --dry-run"),
    ],
)
def test_a_wrapper_takes_no_options_with_which_a_node_cannot_be_judged(words: list[str], said: str) -> None:
    ended = CliRunner().invoke(cli, ["init", "prolog", "--for", "slurm-prolog", "--", *words])
    assert ended.exit_code != 0
    assert said in str(ended.exception)


def test_a_wrapper_takes_a_budget_within_its_own_limit() -> None:
    words = ["--time-budget=45s", "--baseline", "/only/on/nodes.json"]
    assert CliRunner().invoke(cli, ["init", "prolog", "--for", "slurm-prolog", "--", *words]).exit_code == 0


def test_words_after_the_script_of_an_init_container_are_its_arguments() -> None:
    written = CliRunner().invoke(cli, ["init", "prolog", "--for", "kubernetes-init"]).output
    (container,) = YAML(typ="safe").load(written)["initContainers"]
    assert container["command"] == ["/bin/sh", "-c"]
    assert container["args"][1:] == ["gpuproof-gate"]
