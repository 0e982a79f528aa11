"""A suite as a package of its own, installed as anyone would: on two hosts over real sshd, and read again."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree
from statistics import fmean, median

import pytest

from documented import blocks_of
from gpuproof.store.run import RunDirectory
from running import assert_measured, clean_environment, gpuproof, run_tests
from ssh_hosts import Hosts, hosts_in
from sshd import can_serve, ssh_world

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TOY = EXAMPLES / "toy_suite"
TINY = (
    *("--data.batch_size=4", "--benchmark.warmup_steps=1", "--benchmark.measure_by=steps"),
    *("--benchmark.measure_seconds=null", "--benchmark.measure_steps=20"),
    *("--distributed.device=cpu", "--run.commit_hash=null"),
)
needs_sshd = pytest.mark.skipif(can_serve() is not None, reason=str(can_serve()))


@dataclass(frozen=True, kw_only=True)
class Installed:
    """The packages, each in a folder of its own, so that one can be left out."""

    folder: Path

    def environment(self, *names: str) -> dict[str, str]:
        """Return the environment in which just these packages are installed beside gpuproof."""
        sites = [str(self.folder / "sites" / name) for name in names]
        return clean_environment(PYTHONPATH=os.pathsep.join([*sites, str(ROOT / "src")]))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("toy")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    for name in ("toy_suite", "workload_plugin"):
        source = folder / "sources" / name  # a build writes beside its sources
        copytree(EXAMPLES / name, source, ignore=ignore_patterns("*.egg-info", "build", "__pycache__"))
        made = subprocess.run(
            [*pip, "--no-index", f"--target={folder / 'sites' / name}", str(source)],
            capture_output=True,
            text=True,
        )
        assert made.returncode == 0, made.stderr
    return Installed(folder=folder)


@dataclass(frozen=True, kw_only=True)
class HostRun:
    """A run on two hosts, with what it printed."""

    folder: Path
    environment: dict[str, str]
    hosts: Hosts
    done: subprocess.CompletedProcess[str]

    @property
    def root(self) -> Path:
        return self.folder / "results" / "toy" / "r"

    def words(self, *words: str) -> subprocess.CompletedProcess[str]:
        return gpuproof(*words, cwd=self.folder, environment=self.environment)

    def statuses(self) -> dict[tuple[str, int], str]:
        launches = RunDirectory.open(self.root).cases()
        return {(launch.case.case_id, launch.case.replicate): launch.status for launch in launches}


@pytest.fixture(scope="module")
def on_hosts(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostRun]:
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "toy.yaml").write_bytes((TOY / "toy.yaml").read_bytes())
    environment = installed.environment("toy_suite")
    with ssh_world(folder / "servers", ["127.0.0.2", "127.0.0.3"]) as world:
        hosts = hosts_in(world)
        words = hosts.write_inventory(folder / "hosts.json", world.servers, interface="lo")
        done = gpuproof(
            "run", "toy.yaml", *words, *TINY, "--run.run_id=r", cwd=folder, environment=environment
        )
        yield HostRun(folder=folder, environment=environment, hosts=hosts, done=done)


@needs_sshd
def test_each_host_alone_then_the_pair_that_these_chose(on_hosts: HostRun) -> None:
    done, root = on_hosts.done, on_hosts.root
    assert_measured(done)
    result = json.loads((root / "result.json").read_text())
    first, second = result["detail"]["chosen"]
    assert {first, second} == {"node 0", "node 1"}
    pair = "pair@" + f"{first}+{second}".replace(" ", "%20")
    alone = [f"alone@node%20{host}" for host in (0, 1)]
    assert on_hosts.statuses() == {(case, r): "done" for case in (*alone, pair) for r in (0, 1)}
    placed = json.loads((root / "cases" / pair / "0" / "placed.json").read_text())
    assert (placed["hosts"], placed["ranks_per_host"]) == ([first, second], 1)
    assert [on_hosts.hosts.left_behind(server) for server in on_hosts.hosts.world.servers] == [[], []]

    assert (result["suite"], result["num_launches"], result["num_planned"]) == ("toy", 6, 6)
    measures = {measure["subject"]: measure for measure in result["measures"]}
    assert list(measures) == [f"link/{first}>{second}", "whole", "host/node 0", "host/node 1"]
    rates: dict[str, list[float]] = {
        subject: [launch["value"] for launch in found["launches"]] for subject, found in measures.items()
    }
    by_itself = [median(rates[f"host/{host}"]) for host in (first, second)]
    assert 0 < by_itself[0] <= by_itself[1]
    link, whole = measures[f"link/{first}>{second}"], measures["whole"]
    assert (whole["case"], whole["labels"]) == (pair, {"num_hosts": 2, "num_devices": 2})
    assert link["value"] == pytest.approx(fmean(rates["whole"]) / sum(by_itself))
    assert {measure["num_samples"] for measure in measures.values()} == {2}
    assert all(measure["interval"]["kind"] == "between_launches" for measure in measures.values())
    orders = sorted(found["order"] for m in result["measures"][1:] for found in m["launches"])
    assert orders == [0, 1, 2, 3, 4, 5]
    assert {found["order"] for found in whole["launches"]} == {4, 5}


@needs_sshd
def test_its_page_and_its_files(on_hosts: HostRun) -> None:
    root = on_hosts.root
    drawn = on_hosts.words("report", str(root), "--format", "markdown")
    assert drawn.returncode == 0, drawn.stderr
    first, second = json.loads((root / "result.json").read_text())["detail"]["chosen"]
    for text in (
        "# toy: medium on 2 hosts, CPU",
        f"of the throughput of {first} and {second} ",
        "## The pair",
        f"{first} and {second}: the slowest of 2 hosts alone",
        "## Hosts and pair",
        f"| {first} + {second} |",
        "## Throughput round by round",
        "toy_rounds.csv",
    ):
        assert text in drawn.stdout
    rows = list(csv.DictReader((root / "toy_rounds.csv").read_text().splitlines()))
    assert [(row["where"], row["round"]) for row in rows] == [
        (where, round_) for where in ("node 0", "node 1", f"{first} + {second}") for round_ in ("1", "2")
    ]
    assert json.loads((root / "toy.json").read_text())["pair"] == [first, second]
    html = on_hosts.words("report", str(root), "--format", "html")
    assert "<svg" in html.stdout


@needs_sshd
def test_a_list_of_runs_shows_verdict_and_headline(on_hosts: HostRun, installed: Installed) -> None:
    result = json.loads((on_hosts.root / "result.json").read_text())
    (row,) = json.loads(on_hosts.words("runs", "--json").stdout)
    assert (row["suite"], row["what"], row["launches"]) == ("toy", "toy: medium on 2 hosts", "6/6")
    assert row["verdict"] in ("VALID", "SUSPECT", "INVALID")
    assert row["headline"] == result["headline"] == result["measures"][0]["detail"]
    without = gpuproof("runs", "--json", cwd=on_hosts.folder, environment=installed.environment())
    assert json.loads(without.stdout) == [row]
    again = gpuproof("report", "last", cwd=on_hosts.folder, environment=installed.environment())
    assert again.returncode == 2
    assert "no suite is called 'toy'" in again.stderr


@needs_sshd
def test_resume_makes_the_one_launch_that_is_gone(on_hosts: HostRun) -> None:
    root, before = on_hosts.root, on_hosts.statuses()
    chosen = json.loads((root / "toy.json").read_text())["pair"]
    begins = {path: path.read_bytes() for path in root.glob("cases/*/*/rank-0.jsonl")}
    removed = root / "cases" / "alone@node%201" / "1"
    rmtree(removed)
    resumed = on_hosts.words("run", "--resume", str(root))
    assert_measured(resumed)
    assert on_hosts.statuses() == before
    changed = {path.parent for path, content in begins.items() if path.read_bytes() != content}
    assert changed == {removed}
    assert json.loads((root / "toy.json").read_text())["pair"] == chosen


def test_its_block_is_checked_and_in_the_schema_and_it_is_listed(
    installed: Installed, tmp_path: Path
) -> None:
    environment = installed.environment("toy_suite")
    (tmp_path / "wrong.yaml").write_text("suite: toy\ntoy:\n  round: 3\n")
    wrong = gpuproof("run", "wrong.yaml", cwd=tmp_path, environment=environment)
    assert wrong.returncode == 2
    assert "wrong.yaml:3: toy.round: unknown key; did you mean rounds?" in " ".join(wrong.stderr.split())
    (tmp_path / "wrong.yaml").write_text("suite: toy\ntoy:\n  rounds: 0\n")
    wrong = gpuproof("run", "wrong.yaml", cwd=tmp_path, environment=environment)
    assert "wrong.yaml:3: toy.rounds: rounds is 0, but must be 1 or more" in " ".join(wrong.stderr.split())
    schema = json.loads(gpuproof("config", "schema", cwd=tmp_path, environment=environment).stdout)
    block = schema["properties"]["toy"]
    assert list(block["properties"]) == ["rounds", "pair", "least_kept"]
    assert (block["properties"]["pair"]["enum"], block["additionalProperties"]) == (
        ["slowest", "fastest"],
        False,
    )
    listed = gpuproof("plugins", "toy", "--json", cwd=tmp_path, environment=environment)
    (plugin,) = json.loads(listed.stdout)
    assert (plugin["kind"], plugin["distribution"], plugin["state"]) == (
        "suite",
        "gpuproof-example-toy",
        "loads",
    )
    assert not (tmp_path / "results").exists()


def test_a_run_is_concluded_with_the_workloads_package_gone(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_bytes((TOY / "toy.yaml").read_bytes())
    words = ("--model.name=perceptron", "--model.options.hidden=8", "--data.image_size=8", "--toy.rounds=1")
    both = installed.environment("toy_suite", "workload_plugin")
    run = gpuproof("run", "toy.yaml", *TINY, *words, "--run.run_id=p", cwd=tmp_path, environment=both)
    assert_measured(run)
    root = tmp_path / "results" / "toy" / "p"
    before = (root / "result.json").read_bytes()
    (root / "result.json").unlink()
    again = gpuproof(
        "report", "-v", "results/toy/p", cwd=tmp_path, environment=installed.environment("toy_suite")
    )
    assert again.returncode == run.returncode, again.stdout + again.stderr
    assert (root / "result.json").read_bytes() == before
    assert "a pair needs two hosts measured alone" in " ".join(again.stdout.split())


def test_the_readmes_commands_run_as_shown(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_bytes((TOY / "toy.yaml").read_bytes())
    blocks = blocks_of("examples/toy_suite/README.md")
    commands = [command.text for block in blocks for command in block.commands]
    assert len(commands) == 5
    for command in commands:
        words = [*shlex.split(command)[1:], *(TINY if " run " in command else ())]
        result = gpuproof(*words, cwd=tmp_path, environment=installed.environment("toy_suite"))
        assert_measured(result)


def test_its_own_tests_pass(installed: Installed) -> None:
    environment = installed.environment("toy_suite")
    assert "4 passed" in run_tests(TOY / "tests", environment=environment, cwd=installed.folder)
