"""Figures of probes by hand: rates, subjects, who is wrong, and what applies to nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuproof.config.models import RunConfig
from gpuproof.launches.probes import summarize_probe, value_of
from gpuproof.readings.evidence import Evidence
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import Measure, Result
from gpuproof.records.work.probe import ProbeReading
from gpuproof.suites.base import THIS_MACHINE
from gpuproof.suites.probe import SUITE
from probes_by_hand import copies, device, digest, probe_records
from records_by_hand import description


def concluded(figures: Sequence[ProbeReading], name: str = "link", *, num_steps: int = 20) -> Result:
    config = RunConfig.model_validate(
        {"kind": "probe", "probe": {"name": name}, "monitoring": {"enabled": False}}
    )
    (case,) = _cases(config)
    launch = probe_records(case, figures, num_steps=num_steps)
    return SUITE.conclude(_evidence(config, launch)).result


def _cases(config: RunConfig) -> list[Case]:
    return list(SUITE.begin(config, THIS_MACHINE).next(()))


def _evidence(config: RunConfig, *launches: CaseRecords) -> Evidence:
    return Evidence(
        description={**description(), "config": config.model_dump(mode="json")},
        config=config,
        launches=launches,
        hosts=(),
        recording_at=lambda _case, _host: None,
        folder_of=lambda _case: Path(),
    )


def measure(result: Result, name: str, **labels: Any) -> Measure:
    (found,) = (
        m
        for m in result.measures
        if m.name == name and all(m.labels.get(key) == value for key, value in labels.items())
    )
    return found


def statuses(result: Result) -> dict[str, str]:
    return {judged.outcome.subject: judged.outcome.status for judged in result.outcomes}


def test_a_rate_is_all_bytes_over_all_time() -> None:
    assert value_of(copies(durations_s=(0.001, 0.003))) == 2 * 2**20 / 0.004
    assert value_of(copies(amount=None, durations_s=(0.001, 0.003))) == 0.002
    assert value_of(copies(durations_s=(), value=None, missing="why")) is None


def test_a_link_is_of_its_two_ends_and_has_the_interval_of_its_copies() -> None:
    result = concluded([copies(), copies(source=device(1), target=device(0), labels={"kind": "d2d"})])
    h2d = measure(result, "link bandwidth", kind="h2d")
    assert h2d.subject == "link/host/node1>host/node1/gpu/GPU-0"
    assert h2d.value == pytest.approx(2**20 / 0.001)
    assert h2d.interval is not None
    assert h2d.interval.low < 2**20 / 0.001 < h2d.interval.high
    assert measure(result, "link bandwidth", kind="d2d").subject == (
        "link/host/node1/gpu/GPU-1>host/node1/gpu/GPU-0"
    )
    assert result.exit_code == 0


def test_wrong_words_fail_the_run_and_their_device_alone() -> None:
    words = [
        ProbeReading(rank=rank, quantity="wrong values", unit="1", labels={"pattern": "address"}, value=value)
        for rank, value in ((0, 0.0), (1, 3.0))
    ]
    result = concluded(words, "pattern")
    assert result.exit_code == 3
    assert statuses(result) == {"host/node1/gpu/GPU-0": "PASS", "host/node1/gpu/GPU-1": "FAIL"}
    assert "3 values are wrong at host/node1/gpu/GPU-1" in result.doubts[0].reason


def test_the_device_whose_bits_differ_is_named() -> None:
    result = concluded([digest(0, "x"), digest(1, "y"), digest(2, "x")], "fingerprint")
    assert result.exit_code == 3
    assert statuses(result) == {
        "host/node1/gpu/GPU-0": "PASS",
        "host/node1/gpu/GPU-1": "FAIL",
        "host/node1/gpu/GPU-2": "PASS",
    }
    assert {m.value for m in result.measures if m.name == "fingerprint"} == {1.0}
    assert {m.labels["digest"] for m in result.measures if m.name == "fingerprint"} == {"x", "y"}


def test_one_device_alone_is_skipped_and_two_that_differ_fail_together() -> None:
    alone = concluded([digest(0, "x")], "fingerprint")
    assert statuses(alone) == {"host/node1/gpu/GPU-0": "SKIP"}
    assert "nothing to compare the results with" in (alone.outcomes[0].outcome.reason or "")
    two = concluded([digest(0, "x"), digest(1, "y")], "fingerprint")
    assert statuses(two)["whole"] == "FAIL"
    assert two.exit_code == 3


def test_other_software_is_not_compared() -> None:
    result = concluded([digest(0, "x"), digest(1, "y", stack="torch 2.12")], "fingerprint")
    assert set(statuses(result).values()) == {"SKIP"}


def test_what_applies_to_nothing_is_inconclusive_with_its_evidence() -> None:
    reason = "the rank computes on the CPU, which has no separate memory"
    figure = copies(
        durations_s=(), amount=None, target=None, missing=reason, is_inapplicable=True, is_of_host=True
    )
    result = concluded([figure], num_steps=0)
    assert statuses(result) == {"host/node1": "NOT-APPLICABLE"}
    assert result.outcomes[0].outcome.reason == reason
    assert (result.validity, result.exit_code) == (None, 4)


def test_exposed_communication_is_what_it_adds_to_compute() -> None:
    def took(of: str, seconds: float) -> ProbeReading:
        return ProbeReading(
            rank=0, quantity="time", unit="s", labels={"of": of, "edge": 64}, durations_s=(seconds,) * 20
        )

    result = concluded([took("compute", 0.01), took("communication", 0.004), took("both", 0.011)], "overlap")
    assert measure(result, "exposed communication").value == pytest.approx(0.001)
    assert measure(result, "hidden communication").value == pytest.approx(0.75)


def test_a_launch_that_did_not_end_says_nothing() -> None:
    (case,) = _cases(RunConfig.model_validate({"kind": "probe"}))
    whole = probe_records(case)
    assert summarize_probe(CaseRecords(case=case, records=whole.records[:-1])) is None


def test_scattered_copies_are_doubted() -> None:
    wide = tuple(0.001 * (1 + (i % 4)) for i in range(20))
    assert {doubt.code for doubt in concluded([copies(durations_s=wide)]).doubts} == {"noisy"}
    assert {d.code for d in concluded([copies(durations_s=(0.001,) * 5)]).doubts} == {"few-steps"}
