"""What one recipe on several hosts says, from records written by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from concluding import commands_of, text_of
from gpuproof.base.errors import ExitCode
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import FailureCause, ProfileTrace
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace
from gpuproof.suites.by_host.plan import as_on_one_machine
from gpuproof.suites.cases import place_case
from records_by_hand import CASE, H200, Story, case, failure, one_rank, setup, window, write_run


def on(host: str, *, step_s: float = 0.010, gpu: str = "NVIDIA H200") -> CaseRecords:
    records = Story(
        windows=[window(wall_s=100 * step_s, steps_s=100 * step_s)],
        setups=[setup(device=replace(H200, name=gpu))],
        times_s=one_rank(times_s=[step_s * (1.01 if i % 2 else 0.99) for i in range(100)]).times_s,
    ).records()
    return replace(records, case=place_case(records.case, HostPlace(name=host)))


def failed(host: str, stage: str, cause: FailureCause = "environment") -> CaseRecords:
    gone = failure(cause, rank=None, host=host, phase=stage, message=f"{stage}: told of it")
    return CaseRecords(case=place_case(case(), HostPlace(name=host)), records=(gone,))


def fleet_of(folder: Path, launches: list[CaseRecords], **prices: float) -> tuple[RunDirectory, Concluded]:
    run = write_run(folder, launches, run={"repeats": 1})
    hosts = [
        {"name": records.case.placement.host, "price_per_hour": prices.get("price")} for records in launches
    ]
    run.write_description({**run.description(), "fleet": {"hosts": hosts, "currency": "USD"}})
    return run, conclude(run)


def report_of(run: RunDirectory) -> Any:
    """Return what fleet.json says of hosts side by side."""
    text = (run.root / "fleet.json").read_text()
    return json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields)).fleet


def test_every_host_has_a_row_and_the_slow_one_is_named(tmp_path: Path) -> None:
    steps_s = [0.010, 0.0101, 0.0099, 0.01005, 0.020]
    run, conclusion = fleet_of(tmp_path, [on(f"n{i}", step_s=s) for i, s in enumerate(steps_s)], price=3.6)
    assert conclusion.result.exit_code == ExitCode.DONE
    fleet = report_of(run)
    assert [row.items_per_s_total for row in fleet.hosts][::4] == [1000.0, 500.0]
    assert [outlier.host for kind in fleet.summary.types for outlier in kind.outliers] == ["n4"]
    # 3.6 an hour is 0.001 a second; n0 does 1000 samples in it
    assert fleet.hosts[0].cost_per_million_items == 1.0
    shown = text_of(conclusion)
    assert "n4: 500 samples/s a device, 50 % slower than the median of NVIDIA H200" in shown
    stored = json.loads((run.root / "fleet.json").read_text())
    assert stored["summary"]["success_rate"] == 1.0
    assert stored["performance_summary"]["training"]["min_throughput"] == 500.0


def test_a_host_that_failed_is_named_with_its_stage_and_the_others_count(tmp_path: Path) -> None:
    run, conclusion = fleet_of(tmp_path, [on("n0"), on("n1"), failed("n2", "deploy")])
    assert conclusion.result.exit_code == ExitCode.FAILED
    assert conclusion.result.conditions["device"] == "NVIDIA H200"
    fleet = report_of(run)
    assert [row.stage for row in fleet.hosts] == [None, None, "deploy"]
    assert fleet.summary.num_measured == 2
    shown = text_of(conclusion)
    assert "failed at deploy" in shown
    assert "2 of 3 hosts measured" in shown
    assert commands_of(conclusion)[0].startswith("gpuproof run --resume ")
    stored = json.loads((run.root / "fleet.json").read_text())
    assert stored["failed_results"] == [{"hostname": "n2", "stage": "deploy", "error": "deploy: told of it"}]


def test_each_host_keeps_its_trace_though_the_first_host_was_lost(tmp_path: Path) -> None:
    launches = [failed("n0", "deploy")]
    for name in ("n1", "n2"):
        launch = on(name)
        trace = ProfileTrace(rank=0, steps=1, file="trace_rank0.json")
        launches.append(replace(launch, records=(*launch.records, trace)))
    run, _ = fleet_of(tmp_path, launches)
    for launch in launches[1:]:
        (run.case_folder(launch.case) / "trace_rank0.json").write_text(launch.case.case_id)
    conclude(run)
    assert (run.root / "trace_rank0.json").read_text() == "main@n1"
    assert (run.root / "hosts" / "n2" / "trace_rank0.json").read_text() == "main@n2"
    assert not (run.root / "hosts" / "n0" / "trace_rank0.json").exists()


def test_a_ranks_own_failure_is_of_the_stage_execute(tmp_path: Path) -> None:
    broken = CaseRecords(case=place_case(case(), HostPlace(name="n1")), records=(failure("out_of_memory"),))
    run, _ = fleet_of(tmp_path, [on("n0"), broken])
    assert report_of(run).hosts[1].stage == "execute"


def test_a_fleet_of_which_no_host_could_begin_is_unfit(tmp_path: Path) -> None:
    _, conclusion = fleet_of(tmp_path, [failed("n0", "setup"), failed("n1", "setup")])
    assert conclusion.result.exit_code == ExitCode.UNFIT_ENVIRONMENT
    assert "NOTHING MEASURED" in text_of(conclusion)


def test_two_types_are_set_against_each_other(tmp_path: Path) -> None:
    launches = [on("a", gpu="NVIDIA A100-SXM4-80GB", step_s=0.020), on("h")]
    run, conclusion = fleet_of(tmp_path, launches)
    assert conclusion.result.conditions["model"] == "resnet18"
    assert (conclusion.result.conditions["device"], conclusion.result.conditions["num_hosts"]) == (None, 2)
    kinds = report_of(run).summary.types
    assert [(kind.gpu_type, kind.relative_to_fastest) for kind in kinds] == [
        ("NVIDIA H200", 1.0),
        ("NVIDIA A100-SXM4-80GB", 0.5),
    ]


def test_a_case_of_a_host_has_a_folder_of_its_own_whatever_the_host_is_called() -> None:
    hostile = place_case(CASE, HostPlace(name="../../etc 'x'; $(rm)", num_devices=4))
    assert "/" not in hostile.case_id
    assert hostile.case_id.startswith("main@")
    assert (hostile.placement.host, hostile.placement.ranks_per_host) == ("../../etc 'x'; $(rm)", 4)
    assert place_case(CASE, HostPlace(name="n")).placement.ranks_per_host == 1
    launched = [failed("../../etc 'x'; $(rm)", "setup"), failed("other", "setup")]
    assert [as_on_one_machine(found).case.case_id for found in launched] == ["main", "main"]
