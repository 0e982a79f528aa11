"""Values, hosts and points that were lost or are INVALID: nothing is concluded without them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import load_by_hand
from concluding import lines_of, text_of
from gpuproof.base.errors import RecordError, UsageError
from gpuproof.campaign.conclude import conclude
from gpuproof.launches.communication import LOST, phases_of, standalone_s, sync_difference_s
from gpuproof.records.breakdown import BucketAllReduce, GradientSync, StepPhases, SyncRound
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Window
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace
from gpuproof.suites.load.plan import TESTS
from gpuproof.suites.scale import SUITE as SCALE
from gpuproof.suites.scale.breakdown import Agreement, agreement_of
from gpuproof.suites.scale.plan import plan
from load_by_hand import ENVIRONMENT, done, on_fleet, write_load_run
from studies_by_hand import concluded, config
from unit.test_breakdown_figures import alike, story


def whole() -> list[CaseRecords]:
    return [done(test) for test in TESTS]


def impossible(launches: Sequence[CaseRecords]) -> list[CaseRecords]:
    """Ten times the items that the steps add up to: INVALID."""
    return [
        replace(
            of,
            records=tuple(replace(x, items=10 * x.items) if isinstance(x, Window) else x for x in of.records),
        )
        for of in launches
    ]


def test_invalid_hosts_do_not_make_a_healthy_one_an_outlier(tmp_path: Path) -> None:
    run = on_fleet(tmp_path, {"n0": whole(), "n1": impossible(whole()), "n2": impossible(whole())})
    found = conclude(run)
    assert found.result.verdict == "INVALID"
    told = lines_of(found, "Outlier hosts")
    assert not any("slower" in line or "faster" in line for line in told)
    assert any(line.startswith("n1: not compared at") and line.endswith("INVALID") for line in told)
    fleet = json.loads((run.root / "fleet.json").read_text())
    assert fleet["performance_summary"]["training"]["max_throughput"] == pytest.approx(2500)
    assert fleet["fleet"]["summary"]["num_measured"] == 3
    assert {test["summary"]["num_measured"] for test in fleet["fleet"]["summary"]["tests"]} == {1}


def test_a_fleet_of_invalid_hosts_alone_has_no_figure_of_all(tmp_path: Path) -> None:
    found = conclude(on_fleet(tmp_path, {"n0": impossible(whole()), "n1": impossible(whole())}))
    assert (found.result.verdict, found.result.headline) == ("INVALID", "2 of 2 hosts")
    assert "not compared at" in text_of(found)


@pytest.mark.parametrize("keep", [[0], [0, 1, 0], [0, 1, 1]])
def test_a_list_of_hosts_that_lost_one_or_has_one_twice_is_refused(tmp_path: Path, keep: list[int]) -> None:
    run = on_fleet(tmp_path, {"n0": whole(), "n1": whole()})
    description = run.description()
    listed = description["fleet"]["hosts"]
    run.write_description(
        {**description, "fleet": {**description["fleet"], "hosts": [listed[i] for i in keep]}}
    )
    with pytest.raises(RecordError, match="not those of the launches"):
        conclude(run)


def test_launches_of_several_hosts_are_not_mixed_if_the_hosts_were_lost(tmp_path: Path) -> None:
    run = on_fleet(tmp_path, {"n0": whole(), "n1": whole()})
    run.write_description({key: value for key, value in run.description().items() if key != "fleet"})
    with pytest.raises(RecordError, match="hosts are not listed"):
        conclude(run)


@pytest.mark.parametrize(
    "facts", [{"cpu": None}, {"devices": None}, {"devices": [{}]}, {"memory_total_bytes": "x"}]
)
def test_a_fact_of_the_host_that_was_lost_is_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]
) -> None:
    monkeypatch.setattr(
        load_by_hand, "ENVIRONMENT", replace(ENVIRONMENT, facts={**ENVIRONMENT.facts, **facts})
    )
    run = write_load_run(tmp_path, [done(test) for test in TESTS])
    conclude(run)
    info = json.loads((run.root / "gpu_loadtest_results.json").read_text())["system_info"]
    assert info["hostname"] == "node7"


def test_a_gpu_whose_peak_was_lost_is_no_cpu(tmp_path: Path) -> None:
    launches = [done(test) for test in TESTS]
    launches[0] = replace(
        launches[0],
        records=tuple(
            replace(x, peak_allocated_bytes=None, peak_with_warmup_bytes=None) if isinstance(x, Window) else x
            for x in launches[0].records
        ),
    )
    run = write_load_run(tmp_path, launches)
    conclude(run)
    (first, *_) = json.loads((run.root / "gpu_loadtest_results.json").read_text())["results"]
    assert first["peak_gpu_memory_mb"] is None
    assert "CPU" not in first["missing"]["peak_gpu_memory_mb"]


ADVICE = "Advice, from what was measured"


def test_devices_that_were_lost_are_no_advice_against_devices(tmp_path: Path) -> None:
    step_s: dict[str, Any] = {
        "bs64-n1": (0.0100, 0.0101, 0.0099),
        "bs64-n2-strong": (0.0120, 0.0121, 0.0119),
        "bs64-n4-strong": (0.0040, 0.00404, 0.00396),
    }
    study = concluded(tmp_path, step_s, batch_sizes=[64], num_devices=[1, 2, 4])
    assert lines_of(study, ADVICE)[0].startswith("several devices: yes: ")
    (run,) = [path.parent for path in tmp_path.rglob("run.json")]
    shutil.rmtree(run / "cases" / "bs64-n4-strong")
    (answer,) = lines_of(conclude(RunDirectory.open(run)), ADVICE)
    assert answer.startswith("several devices: not decided: 1 of the planned")


@pytest.mark.parametrize(
    "changes",
    [
        {"largest_weight_difference": None},
        {"loss_alone": ()},
        {"loss_alone": (1.0,)},
        {"gradient_norm_alone": ()},
    ],
)
def test_what_was_lost_is_not_alike(changes: dict[str, Any]) -> None:
    assert agreement_of([story([alike(0), alike(1, **changes)]).launch()]) == LOST
    told = agreement_of([story([alike(0, largest_weight_difference=1.0), alike(1, **changes)]).launch()])
    assert isinstance(told, Agreement)
    assert not told.is_alike


def test_a_rank_whose_record_was_lost_is_not_alike() -> None:
    assert agreement_of([story([alike(0)]).launch()]) == LOST


PHASES: dict[str, Any] = dict.fromkeys(
    ("data_s", "forward_s", "backward_s", "optimizer_s", "plain_step_s", "marked_step_s"), (0.001,)
)


@pytest.mark.parametrize("lost", PHASES)
def test_lost_phases_are_missing(lost: str) -> None:
    phases = StepPhases(rank=0, clock="host", is_queued=True, **{**PHASES, lost: ()})
    assert phases_of([story([phases]).launch()]) == LOST


def test_lost_bursts_are_missing() -> None:
    whole: dict[str, Any] = dict.fromkeys(
        ("with_sync_s", "without_sync_s", "alone_with_sync_s", "alone_without_sync_s"), (0.001,)
    )
    for name in whole:
        sync = GradientSync(rank=0, clock="host", rounds=(SyncRound(**{**whole, name: ()}),), missing=None)
        assert sync_difference_s(story([sync]).launch()) is None
    bucket = BucketAllReduce(rank=0, clock="host", bucket_bytes=(4,), durations_s=((),), missing=None)
    assert standalone_s(story([bucket]).launch()) is None


def test_nothing_is_predicted_from_points_that_cannot_be_compared(tmp_path: Path) -> None:
    def times(number: int) -> tuple[float, ...]:
        return tuple(0.01 * (0.05 + 0.95 / number) * spread for spread in (1, 1.002, 0.998))

    step_s = {f"bs64-n{n}{'-strong' * (n > 1)}": times(n) for n in (1, 2, 4, 8)}
    study = concluded(tmp_path, step_s, batch_sizes=[64], num_devices=[1, 2, 4, 8])
    assert any(m.statistic == "prediction" for m in study.result.measures)
    (run,) = [path.parent for path in tmp_path.rglob("run.json")]
    for path in run.glob("cases/*/*/rank-*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            record["items"] = 2 * record["items"] if record["kind"] == "window" else record.get("items")
            if record["items"] is None:
                del record["items"]
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    found = conclude(RunDirectory.open(run)).result
    assert found.verdict == "INVALID"
    assert not any(m.statistic == "prediction" for m in found.measures)
    overheads = [m for m in found.measures if m.labels.get("quantity") == "overhead"]
    assert overheads
    assert all(m.value is None and "INVALID" in (m.missing or "") for m in overheads)


def test_the_largest_peak_is_not_known_if_one_was_lost(tmp_path: Path) -> None:
    first, again = done(TESTS[0]), done(TESTS[0])
    lost = replace(
        again,
        case=replace(again.case, replicate=1),
        records=tuple(
            replace(x, peak_allocated_bytes=None, peak_with_warmup_bytes=None) if isinstance(x, Window) else x
            for x in again.records
        ),
    )
    run = write_load_run(tmp_path, [first, lost], run={"repeats": 2})
    conclude(run)
    (found,) = json.loads((run.root / "gpu_loadtest_results.json").read_text())["results"]
    assert found["iterations"] == 160
    assert found["peak_gpu_memory_mb"] is None
    assert found["peak_gpu_memory_with_warmup_mb"] is None


def test_the_interval_of_readings_is_the_one_taken(tmp_path: Path) -> None:
    run = write_load_run(tmp_path, [done(TESTS[0])])
    (path,) = run.root.glob("cases/*/*/monitor-*.jsonl")
    lines = path.read_text().splitlines()
    samples = [line for line in lines if '"kind":"sample"' in line]
    missed = set(samples[1::4]) | set(samples[2::4]) | set(samples[3::4])  # three of four ticks were missed
    path.write_text("".join(f"{line}\n" for line in lines if line not in missed))
    conclude(run)
    (found,) = json.loads((run.root / "gpu_loadtest_results.json").read_text())["results"]
    assert found["monitoring_sample_rate"] == pytest.approx(0.4)


def test_a_study_in_which_nothing_can_be_compared_is_refused_and_an_old_one_is_shown() -> None:
    indivisible = config(laws=["strong"], batch_sizes=[33], num_devices=[1, 2, 4])
    with pytest.raises(UsageError, match="divisible by 2 or 4 devices"):
        SCALE.begin(indivisible, [HostPlace(name="")])
    alone = config(laws=["strong"], batch_sizes=[33], num_devices=[1])
    assert set(plan(indivisible).points) == set(plan(alone).points) == {"bs33-n1"}
