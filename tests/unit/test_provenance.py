"""Every page says when, where, on what and by which versions; what is not known is said with its reason."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import gpuproof
from concluding import words_of
from fleet_by_hand import host_facts
from gpuproof.campaign.conclude import conclude
from gpuproof.cli.main import cli
from gpuproof.readings.selection import of_recording, side_by_side
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Provenance
from gpuproof.records.run import Device, Environment
from gpuproof.store.baselines import run_values
from gpuproof.store.provenance import of_baseline, of_machine, read_provenance
from gpuproof.store.run import RunDirectory
from gpuproof.verdict.baseline import record_baseline
from recordings import header, identity, loaded, sample
from records_by_hand import CPU, H200, one_rank, setup, write_run


def known(provenance: Provenance | None) -> dict[str, str | None]:
    assert provenance is not None
    return {fact.name: fact.text for fact in (*provenance.facts, provenance.command)}


def reasons(provenance: Provenance | None) -> dict[str, str]:
    assert provenance is not None
    facts = (*provenance.facts, provenance.command)
    return {fact.name: fact.missing for fact in facts if fact.text is None}


def on_gpus(*uuids: str) -> CaseRecords:
    """A launch of several ranks on GPUs of a host that tells of its driver and its stack."""
    launch = one_rank().records()
    facts = host_facts("node1", gpus=len(uuids))
    setups = [setup(rank, device=replace(H200, uuid=uuid)) for rank, uuid in enumerate(uuids)]
    others = [record for record in launch.records if record not in launch.setups]
    return replace(launch, records=(Environment(host="node1", facts=facts), *setups, *others))


def test_a_run_on_gpus_names_them_with_driver_cuda_torch_and_version(tmp_path: Path) -> None:
    provenance = conclude(write_run(tmp_path, [on_gpus("GPU-0")])).page.provenance
    assert known(provenance) == {
        "date": "2026-11-20 12:00 UTC",
        "host": "node1",
        "device": "NVIDIA H200",
        "driver": "nvidia 570.86",
        "CUDA": "13.0",
        "torch": "2.9.1",
        "gpuproof": "0.1.0",
        "command": None,
    }
    assert "older version" in reasons(provenance)["command"]


def test_on_the_processor_there_is_no_driver_and_the_reason_is_that(tmp_path: Path) -> None:
    launch = one_rank().records()
    facts = host_facts("node1", gpus=0, torch_cuda=None)
    facts["accelerators"]["drivers"] = {}
    launch = replace(launch, records=(Environment(host="node1", facts=facts), *launch.records))
    missing = reasons(conclude(write_run(tmp_path, [launch])).page.provenance)
    assert missing["driver"] == missing["CUDA or ROCm"] == "no GPU was used"


@pytest.mark.parametrize(
    ("device", "facts", "shown", "missing"),
    [
        (
            replace(CPU, name="EPYC 9354"),
            {"tensorflow_cuda": None},
            {"device": "EPYC 9354", "TensorFlow": "2.20.0"},
            {"driver": "no GPU was used", "CUDA or ROCm": "no GPU was used"},
        ),
        (H200, {"tensorflow_cuda": "12.5.1"}, {"CUDA": "12.5.1", "TensorFlow": "2.20.0"}, {}),
    ],
)
def test_a_run_of_tensorflow_names_its_version_and_what_it_was_built_for(
    tmp_path: Path, device: Device, facts: dict[str, Any], shown: dict[str, str], missing: dict[str, str]
) -> None:
    launch = one_rank().records()
    host = {**host_facts("node1", gpus=1), "torch": None, "tensorflow": "2.20.0", **facts}
    del host["torch_cuda"]
    if device.kind == "cpu":
        host["accelerators"]["drivers"] = {}
    others = [record for record in launch.records if record not in launch.setups]
    records = (Environment(host="node1", facts=host), setup(device=device), *others)
    provenance = conclude(write_run(tmp_path, [replace(launch, records=records)])).page.provenance
    assert "torch" not in known(provenance)
    assert known(provenance).items() >= shown.items()
    assert reasons(provenance).items() >= missing.items()


def test_a_run_of_which_nothing_is_known_says_so_and_invents_nothing(tmp_path: Path) -> None:
    concluded = conclude(write_run(tmp_path, [one_rank().records()]))
    missing = reasons(concluded.page.provenance)
    assert set(missing) == {"driver", "CUDA or ROCm", "torch", "command"}
    assert missing["torch"] == "not recorded by any launch"
    assert "no driver, CUDA or ROCm, torch: not recorded by any launch" in words_of(concluded)


def test_without_its_records_a_run_still_says_where_it_was_measured(tmp_path: Path) -> None:
    run = write_run(tmp_path, [on_gpus("GPU-0")])
    conclude(run)
    for journal in run.root.glob("cases/*/*/*.jsonl"):
        journal.unlink()
    for spec in run.root.glob("cases/*/*/spec.json"):
        spec.unlink()
    provenance = conclude(RunDirectory.open(run.root)).page.provenance
    assert known(provenance)["driver"] == "nvidia 570.86"
    assert known(provenance)["device"] == "NVIDIA H200"
    assert known(provenance) == known(read_provenance(RunDirectory.open(run.root)))


def test_the_command_is_what_was_typed_and_the_hash_that_of_the_recipe(tmp_path: Path) -> None:
    run = write_run(tmp_path, [one_rank().records()])
    other = write_run(tmp_path, [one_rank().records()], run_id="other", training={"precision": "bf16"})
    description = {**run.description(), "command": "gpuproof run quick"}
    run.write_description(description)
    provenances = [conclude(each).page.provenance for each in (run, other)]
    assert known(provenances[0])["command"] == "gpuproof run quick"
    hashes = [provenance.details[0].text for provenance in provenances if provenance is not None]
    assert hashes[0] != hashes[1]
    assert all(text is not None and text.startswith("quick, SHA-256 ") for text in hashes)


def test_two_runs_beside_each_other_say_once_what_they_share() -> None:
    a, b = (of_machine(host_facts("n1", driver=driver), command="c") for driver in ("570.86", "580.1"))
    both = known(side_by_side(a, b, command="gpuproof compare A B"))
    assert both["driver"] == "A nvidia 570.86; B nvidia 580.1"
    assert (both["host"], both["CUDA"], both["command"]) == ("n1", "13.0", "gpuproof compare A B")


def test_a_rocm_host_beside_a_cuda_host() -> None:
    amd: Mapping[str, Any] = host_facts("n2", torch_cuda=None, torch_hip="6.3")
    cuda, rocm = (of_machine(facts, command="c") for facts in (host_facts("n1"), amd))
    assert known(rocm)["ROCm"] == "6.3"
    assert known(side_by_side(cuda, rocm, command="c"))["CUDA or ROCm"] == "A 13.0; B 6.3"


def test_a_recording_knows_its_driver_and_no_framework(tmp_path: Path) -> None:
    records = [header([identity(0), identity(1)], command=("python", "train.py")), sample(0, {0: {}})]
    provenance = of_recording(loaded(tmp_path, records))
    assert known(provenance)["device"] == "2 × Fake GPU 80"
    assert known(provenance)["date"] == "2026-11-20 13:30 UTC"
    assert known(provenance)["driver"] == "1.2.3"
    assert known(provenance)["command"] == "python train.py"
    assert reasons(provenance)["torch"] == "a recording covers drivers and the host, not a framework"


def test_every_page_that_a_command_prints_says_where_it_is_from(tmp_path: Path) -> None:
    run = write_run(tmp_path / "results", [on_gpus("GPU-0")])
    conclude(run)
    at = ["--directory", str(tmp_path / "baselines")]
    assert CliRunner().invoke(cli, ["baseline", "record", "pod", str(run.root), *at]).exit_code == 0
    for words in (
        ["plugins"],
        ["runs", "--save-dir", str(tmp_path / "results")],
        ["baseline", "show", "pod", *at],
        ["baseline", "use", "pod", str(run.root), *at],
        ["report", str(run.root), "--check", "pcie"],
    ):
        printed = CliRunner().invoke(cli, words).stdout
        assert re.search(r"^ +date 2026-.* · gpuproof 0", printed, re.DOTALL | re.MULTILINE), printed


def test_a_baseline_holds_for_what_it_was_recorded_on(tmp_path: Path) -> None:
    run = write_run(tmp_path, [on_gpus("GPU-0")])
    conclude(run)
    baseline = record_baseline("pod", [run_values(run)], recorded="2026-11-21", gpuproof_version="0.1.0")
    provenance = of_baseline(baseline, command="gpuproof baseline show pod")
    assert known(provenance) == {
        "date": "2026-11-21",
        "host": "node1",
        "device": "NVIDIA H100 80GB HBM3",
        "driver": "nvidia 570.86",
        "CUDA or ROCm": "13.0",
        "torch": "2.9.1",
        "gpuproof": "0.1.0",
        "command": "gpuproof baseline show pod",
    }


def test_no_command_lays_out_a_page_without_saying_where_it_is_from() -> None:
    source = Path(gpuproof.__file__).parent
    files = [*source.glob("cli/**/*.py"), *source.glob("launchers/**/*.py"), *source.glob("doctor/*.py")]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text())))
    pages = [
        {word.arg for word in node.keywords}
        for node in nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("Page", "outcomes_page")
    ]
    assert len(pages) >= 8
    assert all("provenance" in words for words in pages)


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_every_format_for_people_begins_with_the_verdict_and_has_the_provenance(
    form: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path, [on_gpus("GPU-0")])
    printed = CliRunner().invoke(cli, ["report", str(run.root), "--format", form]).stdout
    body = printed.partition("<body>")[2] if form == "html" else printed
    order = ("VALID", "1,000 samples/s", "resnet18 training", "570.86", "Results")
    places = [body.index(text) for text in order]
    assert places == sorted(places)
    for fact in ("2026-11-20 12:00 UTC", "node1", "NVIDIA H200", "13.0", "2.9.1", "0.1.0"):
        assert fact in body


def test_programs_get_what_they_got(tmp_path: Path) -> None:
    run = write_run(tmp_path, [on_gpus("GPU-0")])
    conclude(run)
    result = json.loads((run.root / "result.json").read_text())
    assert "provenance" not in json.dumps(result)
