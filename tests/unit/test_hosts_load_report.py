"""What a load suite, or a sweep, on several hosts says, from records written by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from concluding import commands_of, detail_of, text_of
from gpuproof.base.errors import ExitCode
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import FailureCause, NotApplied, Setup
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace
from gpuproof.suites.by_host.conclude import HostsDetail
from gpuproof.suites.cases import place_case
from gpuproof.suites.load.plan import TESTS
from load_by_hand import HOST, STEP_S, case_of_test, done, failed, on_fleet
from records_by_hand import Story, case, failure, setup, start, steady_times, window, write_run

PRICE = {"price_per_hour": 3.6}
"""A thousandth a second."""


def whole(**how: Any) -> list[CaseRecords]:
    return [done(test, **how) for test in TESTS]


def ended_at(stage: str, place: int, *, begun: bool, cause: FailureCause = "environment") -> CaseRecords:
    """Return the launch at which the way to a host failed."""
    gone = failure(cause, rank=None, host="x", phase=stage, message=f"{stage}: told of it")
    return CaseRecords(
        case=case_of_test(TESTS[place], monitored=True),
        records=(start(host=HOST), gone) if begun else (gone,),
    )


def concluded(run: RunDirectory) -> tuple[Concluded, Any, dict[str, Any]]:
    """Return the conclusion, and fleet.json: what it says of hosts side by side, and the whole."""
    conclusion = conclude(run)
    text = (run.root / "fleet.json").read_text()
    fleet = json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields)).fleet
    return conclusion, fleet, json.loads(text)


def document_of(run: RunDirectory, host: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.root / "hosts" / host / "gpu_loadtest_results.json").read_text())
    return found


@pytest.mark.promise("S0.29", "S0.31", "R0.6")
def test_every_test_of_every_host_has_its_figures(tmp_path: Path) -> None:
    run = on_fleet(tmp_path, {"n0": whole(step_s=2 * STEP_S), "n1": whole()}, facts=PRICE, power_w=100.0)
    conclusion, fleet, stored = concluded(run)
    assert conclusion.result.exit_code == ExitCode.DONE
    assert conclusion.result.num_launches == conclusion.result.num_planned == 24
    assert [(row.num_successful, row.num_failed, row.stage) for row in fleet.hosts] == [(12, 0, None)] * 2
    first = fleet.hosts[0].cells[0]
    # 16 samples in 51.2 ms at 100 W; at 3.6 an hour, a million of them are 3200 s
    assert first.items_per_s_per_device == pytest.approx(312.5)
    assert first.energy_j_per_item == pytest.approx(0.32)
    assert first.cost_per_million_items == pytest.approx(3.2)
    # the median of 312.5 and 625 is 468.75
    assert [row.relative_to_type for row in fleet.hosts] == [pytest.approx(2 / 3), pytest.approx(4 / 3)]
    # 168 samples in a step of all six models of a kind, whose steps are equally long
    assert fleet.hosts[0].energy_j_per_item == pytest.approx(100 * 6 * 2 * STEP_S / 168)
    assert fleet.hosts[0].cost_per_million_items == pytest.approx(1000 * 6 * 2 * STEP_S / 168)
    assert stored["summary"]["success_rate"] == 1.0
    assert stored["performance_summary"]["total_tests"] == 24
    assert stored["performance_summary"]["training"]["min_throughput"] == pytest.approx(8 / (2 * STEP_S))
    tests = stored["successful_results"][1]["results"]
    assert [test["test_name"] for test in tests] == [test.name for test in TESTS]
    assert {test["source_hostname"] for test in tests} == {"n1"}


def test_a_host_has_its_results_in_the_form_of_one_machine(tmp_path: Path) -> None:
    run = on_fleet(tmp_path, {"n0": whole(), "n 1": whole()})
    concluded(run)
    document = document_of(run, "n%201")
    assert document["system_info"]["hostname"] == HOST
    assert document["system_info"]["gpu_names"] == ["NVIDIA H200"]
    assert document["test_summary"]["successful_tests"] == 12
    assert document["results"][0]["gpu_utilization_stats"]["sample_count"] > 10
    assert document["results"][0]["num_devices"] == 1


def test_a_host_that_died_keeps_what_it_measured_and_is_no_success(tmp_path: Path) -> None:
    cut = ended_at("download", 4, begun=True, cause="lost_rank")
    run = on_fleet(tmp_path, {"n0": whole(), "n1": [*(done(test) for test in TESTS[:4]), cut]}, facts=PRICE)
    conclusion, fleet, stored = concluded(run)
    assert conclusion.result.exit_code == ExitCode.FAILED
    row = fleet.hosts[1]
    assert (row.num_successful, row.num_failed, row.num_not_run) == (4, 1, 7)
    assert (row.stage, row.failure) == ("download", "download: told of it")
    assert (row.energy_j_per_item, row.cost_per_million_items) == (None, None)  # it did less than the other
    assert [test.summary.num_measured for test in fleet.summary.tests] == [2] * 4 + [1] * 8
    (told,) = stored["failed_results"]
    assert (told["hostname"], told["stage"], told["error"]) == ("n1", "download", "download: told of it")
    assert [test["success"] for test in told["results"]] == [True] * 4 + [False]
    assert stored["summary"]["successful_instances"] == 1
    assert stored["performance_summary"]["total_tests"] == 17
    document = document_of(run, "n1")
    assert len(document["test_summary"]["not_run_tests"]) == 7
    shown = text_of(conclusion)
    assert "failed at download" in shown
    assert "at train_resnet_bs16: download: told of it" in shown
    assert commands_of(conclusion)[0] == f"gpuproof load --resume {run.root}"


def test_a_host_that_was_not_reached_has_no_test_that_failed_and_no_results(tmp_path: Path) -> None:
    run = on_fleet(tmp_path, {"n0": whole(), "n1": [ended_at("setup", 0, begun=False)], "n2": []})
    conclusion, fleet, stored = concluded(run)
    assert conclusion.result.exit_code == ExitCode.FAILED
    assert [(row.num_failed, row.num_not_run) for row in fleet.hosts[1:]] == [(0, 12), (0, 12)]
    assert [(told["hostname"], told["stage"], told["error"]) for told in stored["failed_results"]] == [
        ("n1", "setup", "setup: told of it"),
        ("n2", None, "nothing was launched there"),
    ]
    assert not any("results" in told for told in stored["failed_results"])
    assert sorted(path.name for path in (run.root / "hosts").iterdir()) == ["n0"]
    shown = text_of(conclusion)
    assert "1 of 3 hosts measured" in shown
    assert "12 of 36 launches were measured" in shown
    assert shown.count("12 not run") == 2


def test_no_host_that_could_be_reached_is_an_unfit_environment(tmp_path: Path) -> None:
    run = on_fleet(tmp_path, {"n0": [ended_at("setup", 0, begun=False)]})
    conclusion, _, stored = concluded(run)
    assert conclusion.result.exit_code == ExitCode.UNFIT_ENVIRONMENT
    assert stored["summary"]["success_rate"] == 0.0
    assert "NOTHING MEASURED" in text_of(conclusion)


def test_a_test_that_failed_is_its_own_and_the_host_a_success(tmp_path: Path) -> None:
    some = [failed(test) if test is TESTS[5] else done(test) for test in TESTS]
    conclusion, fleet, stored = concluded(on_fleet(tmp_path, {"n0": whole(), "n1": some}))
    assert conclusion.result.exit_code == ExitCode.FAILED
    assert (fleet.hosts[1].num_failed, fleet.hosts[1].stage) == (1, None)
    assert (fleet.hosts[1].cells[5].outcome, fleet.hosts[1].cells[5].success) == ("failed: exception", False)
    assert stored["failed_results"] == []
    assert fleet.summary.tests[5].summary.num_measured == 1


def test_a_host_all_of_whose_tests_failed_is_no_success(tmp_path: Path) -> None:
    conclusion, fleet, stored = concluded(
        on_fleet(tmp_path, {"n0": whole(), "n1": [failed(test, message="no room") for test in TESTS]})
    )
    assert conclusion.result.exit_code == ExitCode.FAILED
    assert (fleet.hosts[1].stage, fleet.hosts[1].validity) == ("execute", None)
    assert stored["summary"]["failed_instances"] == 1
    told = [failure.message for failure in conclusion.result.failures]
    assert told == ["at train_simple_cnn_bs16 and 11 more: no room"]


def test_a_timeout_of_one_test_is_a_failure_of_the_fleet(tmp_path: Path) -> None:
    late = [failed(test, "timeout") if test is TESTS[5] else done(test) for test in TESTS]
    conclusion, _, _ = concluded(on_fleet(tmp_path, {"n0": late}))
    assert conclusion.result.exit_code == ExitCode.FAILED


def test_the_slow_host_is_named_by_its_mean_over_tests(tmp_path: Path) -> None:
    steps_s = [0.0256, 0.0258, 0.0254, 0.0257, 0.0400]
    run = on_fleet(tmp_path, {f"n{i}": whole(step_s=step_s) for i, step_s in enumerate(steps_s)})
    conclusion, fleet, _ = concluded(run)
    # five hosts: 76 for one of twelve tests, which are 41 off, and 11.6 for the mean
    assert [(apart.host, len(apart.tests)) for apart in fleet.summary.apart] == [("n4", 0)]
    shown = " ".join(text_of(conclusion).split())
    assert "n4: 36 % slower than the median of NVIDIA H200" in shown  # 0.0256 / 0.04 is 0.64
    assert "on average over tests" in shown
    assert "outliers: 1 of 5 hosts; limits: mean over 12 tests modified Z 11." in shown


@pytest.mark.promise("S0.30")
def test_types_are_set_against_each_other(tmp_path: Path) -> None:
    run = on_fleet(tmp_path, {"h": whole(), "a": whole(step_s=2 * STEP_S, gpu="NVIDIA A100-SXM4-80GB")})
    conclusion, fleet, _ = concluded(run)
    assert [(kind.gpu_type, kind.relative_to_fastest) for kind in fleet.summary.types] == [
        ("NVIDIA H200", 1.0),
        ("NVIDIA A100-SXM4-80GB", pytest.approx(0.5)),
    ]
    shown = text_of(conclusion)
    assert "NVIDIA A100-SXM4-80GB, by test and device" in shown
    assert "All hosts, by test and device" in shown


def ignoring(records: CaseRecords, *keys: str) -> CaseRecords:
    ignored = tuple(NotApplied(key=key, reason="told why") for key in keys)
    told = [replace(x, not_applied=ignored) if isinstance(x, Setup) else x for x in records.records]
    return replace(records, records=tuple(told))


def test_a_key_that_changed_no_test_of_a_host_is_named(tmp_path: Path) -> None:
    launches = [ignoring(done(test), "run.start", *(["x.y"] if test is TESTS[0] else [])) for test in TESTS]
    run = on_fleet(tmp_path, {"n0": whole(), "n1": launches})
    described = run.description()
    run.write_description({**described, "origins": {"run.start": "--run.start", "x.y": "--x.y"}})
    conclusion, _, _ = concluded(run)
    assert [item.key for item in detail_of(HostsDetail, conclusion).common.not_applied] == ["run.start"]
    assert "run.start: told why" in text_of(conclusion)


def test_a_fleet_concluded_again_says_the_same(tmp_path: Path) -> None:
    run = on_fleet(tmp_path, {"n0": whole(), "n1": [ended_at("setup", 0, begun=False)]})
    first, _, stored = concluded(run)
    second, _, again = concluded(run)
    assert (text_of(first), stored) == (text_of(second), again)


def points(step_s: float) -> list[CaseRecords]:
    return [
        Story(
            windows=[window(items=100 * batch, wall_s=100 * step_s, steps_s=100 * step_s)],
            setups=[setup(items_per_step=batch)],
            times_s=steady_times(100, step_s),
            case=replace(case(data={"batch_size": batch}), case_id=f"batch_size={batch}"),
        ).records()
        for batch in (10, 20)
    ]


def test_the_points_of_a_sweep_stand_where_tests_do(tmp_path: Path) -> None:
    hosts = {"n0": points(0.01), "n1": points(0.02)[:1]}
    launches = [
        replace(records, case=place_case(records.case, HostPlace(name=host)))
        for host, own in hosts.items()
        for records in own
    ]
    run = write_run(tmp_path, launches, matrix={"data.batch_size": [10, 20]}, run={"repeats": 1})
    listed = [{"name": host} for host in hosts]
    run.write_description({**run.description(), "fleet": {"hosts": listed, "currency": "USD"}})
    conclusion, fleet, stored = concluded(run)
    assert conclusion.result.exit_code == ExitCode.INCONCLUSIVE  # n1 has yet to run a point
    assert fleet.what == "points"
    assert [row.best for row in fleet.hosts] == ["batch_size=20", "batch_size=10"]
    assert [cell.items_per_s_per_device for cell in fleet.hosts[0].cells] == [1000, 2000]
    (told,) = stored["failed_results"]
    assert (told["hostname"], told["error"]) == ("n1", "not all of its launches ran")
    assert [test["test_name"] for test in stored["successful_results"][0]["results"]] == [
        "batch_size=10",
        "batch_size=20",
    ]
    shown = text_of(conclusion)
    assert "Points 1 to 2, samples/s of a device" in shown
    assert "2  batch_size=20" in shown
