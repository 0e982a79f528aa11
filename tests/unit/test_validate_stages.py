"""Stages that are probes, and the soak: what is launched, fails, applies to nothing, or drifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concluding import text_of
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.records.case import Case, ProbeWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Outcome
from gpuproof.records.run import Environment, Window
from gpuproof.records.work.probe import ProbeReading
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate import SUITE
from gpuproof.suites.validate.cells import required_rows
from gpuproof.suites.validate.options import read_options
from gpuproof.suites.validate.trend import trend_of
from probes_by_hand import copies, digest, probe_records
from validation_by_hand import done, host_facts, recipe, walk, written

PROBES = ["links", "pattern", "fingerprint", "overlap", "nccl_tests", "storage"]
EQUAL: dict[str, Any] = {
    **{"aspect": "right results", "title": "equal results", "measure": "wrong values"},
    "labels": {"stage": "fingerprint"},
}
Figures = Callable[[str, int], Sequence[ProbeReading]]


def healthy(probe: str, rank: int) -> list[ProbeReading]:
    """What each probe gives on a rank of which nothing is wrong."""
    if probe == "fingerprint":
        return [digest(rank, "same", round_number=number) for number in range(3)]
    if probe == "pattern":
        return [
            ProbeReading(rank=rank, quantity="wrong values", unit="1", labels={"pattern": "a"}, value=0.0)
        ]
    if probe == "nccl_tests":
        none: dict[str, Any] = {
            "missing": "all_reduce_perf is not on PATH",
            "is_inapplicable": True,
            "is_of_host": True,
        }
        return [ProbeReading(rank=rank, quantity="bus bandwidth", unit="B/s", **none)]
    return [copies(rank, rank)]


def ended(figures: Figures = healthy) -> Callable[[Case], CaseRecords]:
    def end(case: Case) -> CaseRecords:
        if not isinstance(case.work, ProbeWork):
            return done(case)
        ranks = range(case.placement.num_ranks)
        told = [figure for rank in ranks for figure in figures(case.work.probe.name, rank)]
        host = case.placement.host or "node1"
        found = probe_records(case, told)
        return replace(found, records=(*found.records, Environment(host=host, facts={"devices": [{}] * 2})))

    return end


def concluded(folder: Path, figures: Figures = healthy, **options: Any) -> Concluded:
    config = recipe(validate={"stages": [*PROBES, "training"], **options})
    return conclude(written(folder, walk(config, end=ended(figures)), config))


def outcomes(found: Concluded, name: str) -> dict[str, Outcome]:
    return {x.outcome.subject: x.outcome for x in found.result.outcomes if x.name == name}


def test_probes_are_launched_on_each_host_and_of_each_device() -> None:
    config = recipe(validate={"stages": PROBES, "storage_dir": "/scratch"})
    hosts = tuple(HostPlace(name=name, num_devices=2) for name in ("a", "b"))
    cases = [launch.case for launch in walk(config, hosts, ended())]
    assert [(case.case_id, case.placement.num_ranks) for case in cases] == [
        *(("links@a", 1), ("links@b", 1), ("pattern@a", 2), ("pattern@b", 2)),
        *(("fingerprint@a", 2), ("fingerprint@b", 2), ("overlap", 4)),
        *(("nccl-tests@a", 1), ("nccl-tests@b", 1), ("storage@a", 1), ("storage@b", 1)),
    ]


def test_what_does_not_apply_is_said_and_keeps_nobody_from_being_ready(tmp_path: Path) -> None:
    found = concluded(tmp_path)
    (nccl,) = outcomes(found, "nccl-tests was measured").values()
    assert (nccl.status, nccl.reason) == ("NOT-APPLICABLE", "all_reduce_perf is not on PATH")
    assert outcomes(found, "storage")["whole"].status == "SKIP"
    assert found.result.verdict == "READY", text_of(found)


@pytest.mark.parametrize("probe", ["pattern", "fingerprint"])
def test_a_device_with_wrong_values_is_named_and_who_acts(probe: str, tmp_path: Path) -> None:
    def figures(kind: str, rank: int) -> list[ProbeReading]:
        if kind != probe or rank != 1:
            return healthy(kind, rank)
        if kind == "pattern":
            return [replace(figure, value=3.0) for figure in healthy(kind, rank)]
        return [digest(rank, given, round_number=n) for n, given in enumerate(("same", "other", "same"))]

    found = concluded(tmp_path, figures)
    failed = [x.outcome for x in found.result.outcomes if x.outcome.status == "FAIL"]
    assert {(x.subject, x.responsible) for x in failed} == {("host/node1/gpu/GPU-1", "vendor")}, text_of(
        found
    )
    assert found.result.verdict != "READY"


def test_fingerprints_of_hosts_with_one_device_each_are_compared_with_each_other(tmp_path: Path) -> None:
    config = recipe(validate={"stages": ["fingerprint"]}, distributed={"nproc": 1})
    hosts = tuple(HostPlace(name=name, num_devices=1) for name in ("a", "b", "c"))

    def end(case: Case) -> CaseRecords:
        given = "other" if case.placement.host == "b" else "same"
        return ended(lambda _, rank: [digest(rank, given)])(case)

    run = written(tmp_path, walk(config, hosts, end), config)
    described = {key: value for key, value in run.description().items() if key != "schema_version"}
    run.write_description({**described, "places": [{"name": x.name, "num_devices": 1} for x in hosts]})
    found = outcomes(conclude(run), "fingerprint")
    assert {subject.split("/")[1]: x.status for subject, x in found.items()} == {
        "a": "PASS",
        "b": "FAIL",
        "c": "PASS",
    }


def product(rank: int, *, num_wrong: float = 0.0) -> ProbeReading:
    """What a rank's last product gave against the host's own."""
    labels = {"workload": "gemm", "pattern": "reference", "dtype": "fp32", "edge": 2048}
    return ProbeReading(rank=rank, quantity="wrong values", unit="1", labels=labels, value=num_wrong)


@pytest.mark.parametrize(
    ("figures", "standing"),
    [
        ([*healthy("fingerprint", 0), product(0)], "passed"),
        ([*healthy("fingerprint", 0), product(0, num_wrong=1.0)], "failed"),
        ([digest(0, "same"), digest(0, "other", round_number=1), product(0)], "failed"),
        (healthy("fingerprint", 0), "undecided"),
        ([digest(0, "same"), product(0)], "undecided"),
    ],
)
def test_one_device_is_compared_with_its_own_rounds_and_with_the_host(
    figures: list[ProbeReading], standing: str, tmp_path: Path
) -> None:
    config = recipe(
        validate={"stages": ["fingerprint"], "rules": [], "aspects": [EQUAL]}, distributed={"nproc": 1}
    )

    def end(case: Case) -> CaseRecords:
        found = probe_records(case, figures)
        alone = Environment(host="node1", facts=host_facts(1))
        return replace(found, records=(*found.records, alone))

    found = conclude(written(tmp_path, walk(config, end=end), config))
    (cell,) = found.result.detail["readiness"]["cells"]
    assert (cell["subject"], cell["standing"]) == ("host/node1/gpu/GPU-0", standing), text_of(found)


def test_a_soak_is_several_launches_of_which_those_left_are_resumed() -> None:
    config = recipe(validate={"stages": ["fingerprint", "soak"], "soak_s": 9000.0, "soak_launch_s": 3600.0})
    launches = walk(config, end=ended())
    names = [(launch.case.case_id, launch.case.replicate) for launch in launches]
    assert names == [("fingerprint", 0), ("soak", 0), ("soak", 1), ("soak", 2), ("fingerprint-hot", 0)]
    state = SUITE.begin(config, (HostPlace(name=""),))
    before = SUITE.remaining(state)
    for launch in launches[:2]:
        state = state.settle(launch)
    assert [(case.case_id, case.replicate) for case in state.next(())] == names[2:4]
    after = SUITE.remaining(state)
    assert (before.num_launches, after.num_launches, after.basis) == (5, 3, "plan")
    assert before.seconds is not None
    assert after.seconds is not None
    assert before.seconds > 9000, "the soak and more"
    assert 3000 < before.seconds - after.seconds < 3000 + 600, "a third of the soak, and a fingerprint"


@pytest.mark.parametrize(("rise", "status"), [(0.0, "PASS"), (0.5, "FAIL")])
def test_a_soak_that_becomes_slower_from_launch_to_launch_drifts(
    rise: float, status: str, tmp_path: Path
) -> None:
    def end(case: Case) -> CaseRecords:
        step_s = 0.01 * (1 + rise * case.replicate / 5)
        return done(case, step_s=step_s) if rise else done(case)

    options = {"stages": ["soak"], "soak_s": 6.0, "soak_launch_s": 1.0, "rules": []}
    config = recipe(validate=options)
    found = conclude(written(tmp_path, walk(config, end=end), config))
    (drift,) = outcomes(found, "step-time drift, soak").values()
    assert drift.status == status, text_of(found)


def test_a_trend_accuses_nobody_who_wanders_and_finds_ramps() -> None:
    """Of 20 % the trend of unsteady series is rarely sure: at most 2 in 100, as `trend.py` promises."""
    rng, false, found, draws = np.random.default_rng(3), 0, 0, 60
    for _ in range(draws):
        for series in _unsteady(rng):
            trend = trend_of(series)
            false += trend is not None and trend.low > 0.2
        steady: list[Any] = [np.exp(0.03 * rng.normal(size=60)) * (1 + 0.1 * n) for n in range(6)]
        ramp = trend_of(steady)
        found += ramp is not None and ramp.low > 0.2
    assert (false <= 0.02 * 5 * draws, found >= 0.95 * draws) == (True, True), (false, found)
    assert trend_of([[1.0] * 9]) is None


def _unsteady(rng: np.random.Generator) -> list[list[Any]]:
    """Autocorrelated, stalled, quantised, short and unequal launches."""
    shocks = rng.normal(size=(3, 120))
    wander = np.zeros_like(shocks)
    for step in range(1, shocks.shape[1]):
        wander[:, step] = 0.9 * wander[:, step - 1] + 0.436 * shocks[:, step]
    noisy = np.exp(0.1 * wander)
    stalled = noisy * np.where(rng.random(noisy.shape) < 0.02, 10.0, 1.0)
    launchy = [np.exp(0.03 * rng.normal()) * row for row in np.exp(0.05 * rng.normal(size=(8, 40)))]
    return [
        list(noisy),
        list(stalled),
        list(np.round(noisy, 1)),
        [noisy[0], noisy[1][:30], noisy[2][:70]],
        launchy,
    ]


RIGHT: dict[str, Any] = {
    "aspect": "right results",
    "title": "right products",
    "measure": "wrong values",
    "labels": {"stage": "gemm", "dtype": "each"},
}


def test_right_products_of_one_type_of_arithmetic_say_nothing_of_another(tmp_path: Path) -> None:
    """Nobody compared the products of fp32."""

    def end(case: Case) -> CaseRecords:
        found = done(case)
        labels = {"workload": "gemm", "pattern": "reference"}
        told = [
            ProbeReading(rank=rank, quantity="wrong values", unit="1", labels=labels, value=0.0)
            for rank in range(case.placement.num_ranks)
            if case.model_work.training.precision != "fp32"
        ]
        return replace(found, records=(*found.records, *told))

    config = recipe(validate={"stages": ["gemm"], "gemm_precisions": ["amp", "fp32"], "aspects": [RIGHT]})
    detail = conclude(written(tmp_path, walk(config, end=end), config)).result.detail
    standings = {(x["labels"]["dtype"], x["standing"]) for x in detail["readiness"]["cells"]}
    assert standings == {("fp16", "passed"), ("fp32", "undecided")}


def test_rows_name_arithmetic_as_measures_do_and_one_that_nothing_fills_stays_open() -> None:
    def labels(**options: Any) -> list[Any]:
        config = recipe(validate={"stages": ["gemm"], "aspects": [RIGHT], **options})
        return [row.labels["dtype"] for row in required_rows(read_options(config), ())]

    precisions = ["bf16", "amp", "fp32", "tf32"]  # those of burn-in
    assert labels(gemm_precisions=precisions) == ["bf16", "fp16", "fp32", "tf32"]
    assert labels(gemm_precisions=[]) == ["none is planned"]


def test_a_probe_without_its_window_was_not_measured(tmp_path: Path) -> None:
    def end(case: Case) -> CaseRecords:
        found = ended()(case)
        kept = tuple(x for x in found.records if not isinstance(x, Window) or case.case_id != "links")
        return replace(found, records=kept)

    config = recipe(validate={"stages": ["links", "training"]})
    found = conclude(written(tmp_path, walk(config, end=end), config))
    assert outcomes(found, "links was measured")["host/node1"].status == "ERROR", text_of(found)


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_a_loss_of_all_or_nothing_is_none_that_may_go_unseen(share: float) -> None:
    with pytest.raises(ValueError, match="detects must be a fraction above 0"):
        read_options(recipe(validate={"detects": share}))
