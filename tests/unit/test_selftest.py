"""The catalogue of planted faults: those that need no process turn the verdict, and nothing passes unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.selftest.judging import Turned, judge_links
from gpuproof.selftest.run import FAULTS, TWINS, Fault, FaultRow, PlantedTests, SelftestReport, named

IN_PROCESS = [
    fault for fault in FAULTS if fault.layer in ("records", "rules") and fault.twin not in ("pod", "past")
]
"""Fleets of 64 GPUs, and a past for each, take too long for here: `gpuproof selftest` plants them."""


def row(*, got: str, is_found: bool) -> FaultRow:
    return FaultRow(fault="f", layer="records", expected="NOT-READY", got=got, cause="", is_found=is_found)


@pytest.mark.parametrize("fault", IN_PROCESS, ids=lambda fault: fault.name)
def test_a_planted_fault_turns_the_verdict_and_is_named(fault: Fault, tmp_path: Path) -> None:
    told = fault.judge(tmp_path, 0)
    assert named(fault, told) is not None, told


@pytest.mark.parametrize("seed", range(5))
def test_the_healthy_twin_passes(seed: int, tmp_path: Path) -> None:
    told = TWINS["fleet"](tmp_path / "fleet", seed)
    assert (told.word, told.against) == ("READY", ())
    assert judge_links(tmp_path / "links", seed=seed).word == "READY"
    told = TWINS["events"](tmp_path / "events", seed)
    assert told.word == "READY"
    assert sum(line.startswith("xid, advisory WARN") for line in told.against) == 3
    assert TWINS["alone"](tmp_path / "alone", seed).word == "READY"


def test_a_device_that_is_slower_than_its_own_past_is_named_and_its_twin_passes(tmp_path: Path) -> None:
    assert TWINS["past"](tmp_path / "healthy", 0).word == "READY"
    for fault in (fault for fault in FAULTS if fault.twin == "past"):
        told = fault.judge(tmp_path / fault.name, 0)
        assert named(fault, told) is not None, told


def test_the_catalogue_is_whole() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) >= 60
    assert {fault.layer for fault in FAULTS} == {"worker", "device", "records", "rules"}
    assert {fault.twin for fault in FAULTS} == set(TWINS)
    assert all("READY" not in fault.expected for fault in FAULTS)
    quick = [fault for fault in FAULTS if fault.is_quick]
    assert {fault.layer for fault in quick} == {"worker", "device", "records", "rules"}
    assert {fault.twin for fault in quick} == set(TWINS) - {"pod"}


def test_a_right_word_without_the_cause_is_a_miss() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "lost host")
    assert named(fault, Turned(word="NOT-READY", against=("something else",))) is None
    assert named(fault, Turned(word="READY", against=("host answers FAIL, host/node3: gone",))) is None


def test_what_was_missed_and_what_was_not_run_is_no_success() -> None:
    good, missed = row(got="NOT-READY", is_found=True), row(got="READY", is_found=False)
    unseen = row(got="NOT RUN", is_found=False)
    assert SelftestReport(faults=(good,), healthy=()).exit_code == ExitCode.DONE
    assert SelftestReport(faults=(good, missed, unseen), healthy=()).exit_code == ExitCode.FAILED
    assert SelftestReport(faults=(good,), healthy=(missed,)).exit_code == ExitCode.FAILED
    assert SelftestReport(faults=(good, unseen), healthy=()).exit_code == ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(("num_missed", "is_found"), [(0, True), (3, True), (4, False)])
def test_a_loss_at_the_resolution_may_be_missed_in_few_draws(
    num_missed: int, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "one of 8 slower by 5 %")
    words = ("slow FAIL", "GPU-node1-7")
    monkeypatch.setitem(
        TWINS,
        "past",
        lambda folder, seed, **planted: Turned(word="NOT-READY", against=(words[seed >= num_missed],)),
    )
    row = PlantedTests(scratch=tmp_path, unable=None, num_seeds=20).fault(fault)
    assert (row.is_found, row.num_missed, row.cause) == (is_found, num_missed, words[is_found])


@pytest.mark.parametrize(
    ("word", "cause"),
    [("READY", ""), ("NOT-READY", "doubts WARN: noisy"), ("INCONCLUSIVE", "doubts WARN: noisy")],
)
def test_a_twin_that_passes_is_accused_of_nothing(
    word: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Turned(word=word, against=("doubts WARN: noisy",))
    monkeypatch.setitem(TWINS, "fleet", lambda folder, seed: told)
    row = PlantedTests(scratch=tmp_path, unable=None, num_seeds=2).twin("fleet")
    assert (row.cause, row.is_found, row.num_tried) == (cause, word == "READY", 2)
