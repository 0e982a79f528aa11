"""Collectives from records written by hand: bandwidths worked out on paper, every doubt, healthy twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectives_by_hand import ITERATION_S, MIB, collective_records, trial
from concluding import are_figures_measures, measure_of, table_of, text_of, unmeasured_marks
from gpuproof.base.units import MISSING
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.comparison.measures import comparable
from gpuproof.config.models import RunConfig
from gpuproof.launches.collectives import bus_factor, summarize_collectives
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Device
from gpuproof.records.work.collective import CollectiveTrial, Operation
from gpuproof.suites.cases import build_case
from records_by_hand import CPU, H200, failure, write_run

RANKS = 4
FIGURES: list[tuple[Operation, int, float, float]] = [
    # 4 MiB in 2 ms: 2.097152 GB/s by size; the factors of 4 ranks by hand
    ("all_reduce", 4 * MIB, 2.097152e9, 3.145728e9),
    ("all_gather", 4 * MIB, 2.097152e9, 1.572864e9),
    ("broadcast", 4 * MIB, 2.097152e9, 2.097152e9),
]
SECTIONS: dict[str, Any] = {
    "kind": "collective",
    "collective": {"operations": [name for name, *_ in FIGURES], "min_bytes": "4M", "max_bytes": "4M"},
    "distributed": {"nproc": RANKS},
    "monitoring": {"enabled": False},
    "run": {"repeats": 1},
}
NO_MODEL: dict[str, Any] = {"data": {}, "model": {}}
CONFIG = RunConfig.model_validate(SECTIONS)


def records(*trials: CollectiveTrial, replicate: int = 0, device: Device = H200) -> CaseRecords:
    return collective_records(build_case(CONFIG, replicate), trials, device=device)


def concluded(tmp_path: Path, *launches: CaseRecords) -> Concluded:
    run = {**SECTIONS["run"], "repeats": len(launches)}
    return conclude(write_run(tmp_path, launches, **{**NO_MODEL, **SECTIONS, "run": run}))


def changed(operation: Operation, rank: int, **changes: Any) -> CaseRecords:
    """Return the healthy launch but for one trial."""
    return records(
        *(
            trial(r, name, **(changes if (r, name) == (rank, operation) else {}))
            for name, *_ in FIGURES
            for r in range(RANKS)
        )
    )


def test_bandwidths_are_those_worked_out_by_hand() -> None:
    found = summarize_collectives(records())
    assert found is not None
    told = [(f.operation, f.size_bytes, f.algorithm_bytes_per_s, f.bus_bytes_per_s) for f in found.figures]
    assert [figures[:2] for figures in told] == [figures[:2] for figures in FIGURES]
    assert [rate for f in told for rate in f[2:]] == pytest.approx([r for f in FIGURES for r in f[2:]])


def test_the_factors_of_two_and_of_eight_ranks_and_none_of_one() -> None:
    expected: dict[Operation, tuple[float, float]] = {
        "all_reduce": (1.0, 1.75),
        "reduce_scatter": (0.5, 0.875),
        "all_gather": (0.5, 0.875),
        "all_to_all": (0.5, 0.875),
        "all_to_all_v": (0.5, 0.875),
        "gather": (0.5, 0.875),
        "scatter": (0.5, 0.875),
        "broadcast": (1.0, 1.0),
        "reduce": (1.0, 1.0),
        "send_recv": (1.0, 1.0),
    }
    for operation, factors in expected.items():
        assert tuple(bus_factor(operation, ranks) for ranks in (2, 8)) == factors
        assert bus_factor(operation, 1) is None


def test_the_mean_is_over_ranks_and_an_iteration_is_that_of_its_slowest_rank() -> None:
    ranks = [trial(rank, "all_reduce", durations_s=(rank + 1.0, 5.0 - rank)) for rank in range(RANKS)]
    found = summarize_collectives(records(*ranks))
    assert found is not None
    (figures,) = found.figures
    assert figures.iterations_s == (4.0, 5.0)
    assert figures.time_s == pytest.approx(3.0)


def test_a_healthy_run_is_valid_and_says_its_best(tmp_path: Path) -> None:
    done = concluded(tmp_path, records(), replace(records(replicate=1)), records(replicate=2))
    assert (done.result.validity, done.result.exit_code) == ("VALID", 0)
    assert done.result.headline == "3.15 GB/s busbw, all_reduce of 4.00 MiB"
    rows = table_of(done, "Sizes")
    assert [row["busbw"].text for row in rows] == ["3.15 GB/s", "1.57 GB/s", "2.10 GB/s"]
    assert [row["#wrong"].text for row in rows] == ["0", "0", "0"]
    labelled = [m for m in done.result.measures if m.name == "all_reduce of 4.00 MiB"]
    assert labelled[0].labels["size_bytes"] == 4 * MIB
    assert len(labelled[0].launches) == 3


def test_every_figure_of_a_size_is_a_measure_over_launches(tmp_path: Path) -> None:
    slower = records(
        *(trial(r, "all_reduce", durations_s=(0.003, 0.005 + 0.001 * r) * 10) for r in range(RANKS))
    )
    launches = records(), replace(slower, case=replace(slower.case, replicate=1))
    done = concluded(tmp_path, *launches)
    assert are_figures_measures(done)
    assert unmeasured_marks(done, "Bus bandwidth") == []
    found = {
        m.labels["quantity"]: m
        for m in done.result.measures
        if m.labels.get("operation") == "all_reduce" and m.statistic != "highest of all sizes"
    }
    of_rank = [(0.003 + 0.005 + 0.001 * rank) / 2 for rank in range(RANKS)]
    by_hand = {
        "mean latency": (2e-3 + sum(of_rank) / RANKS) / 2,
        "algorithm bandwidth": 4 * MIB * (1 / 2e-3 + RANKS / sum(of_rank)) / 2,
        "p50 latency": (2.002e-3 + 0.003) / 2,  # between the 20th and the 21st of 40 iterations
        "longest latency": 0.008,
        "rank spread": of_rank[-1] / of_rank[0] - 1,
        "wrong values": 0.0,
    }
    assert {name: found[name].value for name in by_hand} == pytest.approx(by_hand)
    assert (found["p99 latency"].value, found["p99 latency"].missing) == (None, "too few iterations")
    assert [launch.value for launch in found["longest latency"].launches] == pytest.approx([0.002002, 0.008])
    compared = comparable(done.result.measures)
    of_size = {key[2] for key in compared if key[2].startswith("all_reduce")}
    assert {name.partition(", ")[2] for name in of_size} == {
        "",
        "p50 latency",
        "longest latency",
        "rank spread",
        "wrong values",
    }


def test_over_one_rank_there_is_no_bus_bandwidth(tmp_path: Path) -> None:
    config = RunConfig.model_validate({**SECTIONS, "distributed": {"nproc": 1}})
    alone = collective_records(build_case(config, 0), [trial(0, "all_reduce")])
    done = conclude(write_run(tmp_path, [alone], **{**NO_MODEL, **SECTIONS, "distributed": {"nproc": 1}}))
    assert (measure_of(done, "all_reduce of 4.00 MiB").value, measure_of(done, "bus bandwidth").value) == (
        None,
        None,
    )
    assert measure_of(done, "bus bandwidth").missing == "with one rank nothing moves"
    assert table_of(done, "Sizes")[0]["busbw"].text == MISSING


def test_wrong_results_are_a_failed_test_and_name_the_rank(tmp_path: Path) -> None:
    done = concluded(tmp_path, changed("all_gather", 2, num_wrong=3))
    assert (done.result.validity, done.result.exit_code) == ("INVALID", 3)
    text = text_of(done)
    assert "3 of 4,194,304 elements of all_gather of 4.00 MiB are wrong" in text
    assert "seen on rank 2" in text
    assert table_of(done, "Sizes")[1]["#wrong"].text == "3"


@pytest.mark.parametrize(
    ("records_at_fault", "code"),
    [
        (
            changed("all_reduce", 0, num_checked=0, not_checked="collective.check_iterations is 0"),
            "not-checked",
        ),
        (changed("all_reduce", 3, durations_s=(ITERATION_S * 1.5,) * 20), "ranks-differ"),
        (changed("all_reduce", 3, durations_s=(0.001, 0.002, 0.004, 0.003) * 5), "noisy"),
        (records(*(trial(r, "broadcast", durations_s=(0.002,) * 4) for r in range(RANKS))), "few-steps"),
        (records(device=CPU), "gpus-not-used"),
    ],
)
def test_what_weakens_the_figures_is_said(records_at_fault: CaseRecords, code: str, tmp_path: Path) -> None:
    done = concluded(tmp_path, records_at_fault)
    assert code in {doubt.code for doubt in done.result.doubts}
    assert done.result.validity == "SUSPECT"


def test_a_launch_that_failed_and_nothing_measured_are_no_success(tmp_path: Path) -> None:
    whole = records()
    broken = replace(whole, records=(whole.records[0], failure("exception")))
    done = concluded(tmp_path, broken)
    assert done.result.exit_code == 3
    assert done.result.verdict == "NOTHING MEASURED"


def test_sizes_too_small_for_all_ranks_are_told_and_not_counted(tmp_path: Path) -> None:
    empty = {"size_bytes": 0, "num_elements": 0, "durations_s": (), "num_checked": 0, "asked_bytes": 8}
    small = [trial(r, "all_gather", **empty, not_checked="8 bytes hold no element") for r in range(RANKS)]
    done = concluded(tmp_path, records(*small, *(trial(r, "all_reduce") for r in range(RANKS))))
    assert len(table_of(done, "Sizes")) == 1
    assert "all_gather: 8 bytes hold no element" in text_of(done)
    codes = {doubt.code for doubt in done.result.doubts}
    assert "not-checked" not in codes
    assert "not-measured" in codes, "an operation was asked for, and nothing is known of it"
    assert done.result.validity == "SUSPECT"


def test_a_size_that_a_rank_says_nothing_of_has_no_figure(tmp_path: Path) -> None:
    torn = [trial(rank, "all_reduce") for rank in range(RANKS - 1)]
    done = concluded(tmp_path, records(*torn, *(trial(rank, "broadcast") for rank in range(RANKS))))
    assert [row["operation"].text for row in table_of(done, "Sizes")] == ["broadcast"]
    assert "not-measured" in {doubt.code for doubt in done.result.doubts}
