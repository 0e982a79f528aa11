"""A winner needs two sides that can be used: which doubts take one away, wherever one is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from cases_by_hand import cases_of
from concluding import lines_of, notes_of, table_of, text_of
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.comparison.winners import (
    TOUCHES,
    ComparedSide,
    Pairing,
    compare_sides,
    contest,
    doubts_at,
    reason_unusable,
)
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Chart
from gpuproof.records.result import Doubt, Validity
from gpuproof.report.terminal import terminal_text
from gpuproof.suites.matrix.case_values import Amount
from gpuproof.suites.matrix.conclude import matrix_result
from gpuproof.suites.matrix.old_tree import tree_evidence
from gpuproof.suites.matrix.page import page
from gpuproof.suites.points.results import read_values
from gpuproof.verdict.doubts.base import LIKELY
from records_by_hand import QUIET, case, one_rank, steady_times, with_work, write_run
from studies_by_hand import config, launches, sections

RATES = (100.0, 101.0, 99.0, 100.5, 99.5)
IN_TURNS = Pairing(is_interleaved=True)


def doubt(code: str, validity: Any = "SUSPECT") -> Doubt:
    return Doubt(validity=validity, code=code, reason="why", remedy="")


def side(name: str, *codes: str, factor: float = 1.0, validity: Validity | None = None) -> ComparedSide:
    values = [factor * rate for rate in RATES]
    doubts = tuple(map(doubt, codes))
    return ComparedSide(name=name, values=values, doubts=doubts, validity=validity, value=values[0])


@pytest.mark.parametrize(
    ("of_a", "of_b", "pairing", "reason"),
    [
        ((), (), Pairing(), None),
        (("cpu-neighbours",), (), Pairing(), "A is SUSPECT (why)"),
        (("cpu-neighbours",), ("cpu-neighbours",), Pairing(), "A is SUSPECT (why)"),
        (("cpu-neighbours",), ("cpu-neighbours",), IN_TURNS, None),
        ((), ("unsteady",), IN_TURNS, "B is SUSPECT (why)"),
        (("few-steps",), ("few-steps",), IN_TURNS, "A is SUSPECT (why)"),
        (("device-fault",), ("device-fault",), IN_TURNS, "A is SUSPECT (why)"),
        (("of-a-plug-in",), ("of-a-plug-in",), IN_TURNS, "A is SUSPECT (why)"),
        (("host-bound",), ("host-bound",), Pairing(), None),
        (("host-bound",), (), Pairing(), "A is SUSPECT (why)"),
        (("launches-differ", "imprecise", "work-not-counted"), (), Pairing(), None),
    ],
)
def test_which_doubts_take_a_winner_away(
    of_a: Sequence[str], of_b: Sequence[str], pairing: Pairing, reason: str | None
) -> None:
    found = compare_sides(
        side("A", *of_a), side("B", *of_b, factor=1.2), better="higher", confidence=0.95, pairing=pairing
    )
    assert (
        found.reason == (reason or ("pairs do not differ" if found.reason else None)) or pairing is IN_TURNS
    )
    assert (found.ratio is None) is (reason is not None or bool(found.reason))
    if reason:
        assert found.reason == reason


def test_an_accuracy_is_not_touched_by_who_took_the_processors() -> None:
    crowded = side("A", "cpu-neighbours", "few-steps")
    assert reason_unusable(crowded, figure="test_accuracy") is None
    assert reason_unusable(crowded, figure="images_per_s") == "A is SUSPECT (why)"
    assert reason_unusable(side("A", "unequal-steps"), figure="test_accuracy") == "A is SUSPECT (why)"


def test_a_side_of_which_only_the_validity_is_known() -> None:
    assert reason_unusable(side("A", validity="SUSPECT")) == "A is SUSPECT"
    assert reason_unusable(side("A", validity="VALID")) is None
    invalid = replace(side("A"), doubts=(doubt("noisy"), doubt("over-ceiling", "INVALID")))
    assert reason_unusable(invalid, beside=invalid.doubts, is_in_turns=True) == "A is INVALID (why)"


def test_every_listed_doubt_is_one_that_exists() -> None:
    others = {"compiled-in-window", "slow-start", "steadiness-unknown"}
    assert set(TOUCHES) <= set(LIKELY) | others


@pytest.mark.parametrize(
    ("sides", "contenders", "missing"),
    [
        ([side("a"), side("b", factor=2)], {"a", "b"}, None),
        ([side("a", "noisy"), side("b"), side("c", factor=2)], {"b", "c"}, None),
        ([side("a", "noisy", factor=3), side("b"), side("c")], {"b", "c"}, "its result is the best"),
        ([side("a", "noisy"), side("b")], {"b"}, "only b of 2 can be used: a is SUSPECT (why)"),
        (
            [side("a", "noisy"), side("b", "stalled")],
            set(),
            "none of 2 can be used: a is SUSPECT (why) and 1 more",
        ),
        ([side("a", validity="INVALID", factor=9), side("b"), side("c")], {"b", "c"}, None),
        ([side("a", "host-bound"), side("b", "host-bound")], {"a", "b"}, None),
        ([side("a")], {"a"}, None),
    ],
)
def test_who_of_several_may_win(
    sides: Sequence[ComparedSide], contenders: set[str], missing: str | None
) -> None:
    found = contest(sides, better="higher")
    assert {one.name for one in found.contenders} == contenders
    assert (missing or "") in (found.missing or "")
    assert (found.missing is None) is (missing is None)


PRECISIONS = {"training.precision": ["fp32", "bf16", "amp"]}


def sweep(tmp_path: Path, steps: dict[str, tuple[int, float]]) -> Concluded:
    """Conclude points of three launches of so many steps of so many seconds."""
    told = [
        replace(
            one_rank(times_s=steady_times(num, step_s * factor), items=10 * num, replicate=i).records(),
            case=with_work(replace(case(replicate=i), case_id=f"precision={name}")),
        )
        for name, (num, step_s) in steps.items()
        for i, factor in enumerate((1.0, 1.01, 0.99))
    ]
    return conclude(write_run(tmp_path, told, run={"repeats": 3}, matrix=PRECISIONS))


def outcomes(done: Concluded) -> list[str]:
    return [row["outcome"].text for row in table_of(done, "Points")]


def test_a_point_of_few_steps_is_not_ranked_and_the_best_is_of_the_others(tmp_path: Path) -> None:
    done = sweep(tmp_path, {"fp32": (5, 0.03), "bf16": (100, 0.01), "amp": (100, 0.02)})
    assert outcomes(done)[0].startswith("cannot tell: SUSPECT (too few steps were measured: 5")
    assert outcomes(done)[1] == "best"
    assert outcomes(done)[2].endswith("slower at 95% for all pairs together")
    assert any(note.startswith("not ranked: precision=fp32 is SUSPECT") for note in notes_of(done))
    points = read_values(done.result)
    assert [[found.code for found in point.doubts] for point in points] == [["few-steps"], [], []]
    assert [found.code for found in doubts_at(done.result, "precision=fp32")] == ["few-steps"]
    assert doubts_at(done.result, "precision=amp") == ()


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ({"fp32": (5, 0.001), "bf16": (100, 0.01), "amp": (100, 0.02)}, "and its result is the best"),
        ({"fp32": (5, 0.03), "bf16": (5, 0.01), "amp": (100, 0.02)}, "only precision=amp of 3 can be used"),
    ],
)
def test_no_point_is_the_best_beside_one_that_may_be_better(
    tmp_path: Path, steps: dict[str, tuple[int, float]], reason: str
) -> None:
    done = sweep(tmp_path, steps)
    assert "best" not in outcomes(done)
    assert any(note.startswith("no best point: ") and reason in note for note in notes_of(done))
    assert "best throughput" not in text_of(done)


def test_devices_that_others_shared_give_no_advice(tmp_path: Path) -> None:
    of = config(laws=["strong"])
    crowded = replace(QUIET, busy_cpu_s=3.9, run_queue_wait_s=0.5, own_cpu_s=1.0, num_cpus=4)
    step_s = {"bs32-n1": (0.010, 0.0101, 0.0099), "bs32-n2-strong": (0.006, 0.00606, 0.00594)}
    records = [_beside(x, crowded) if x.case.case_id == "bs32-n1" else x for x in launches(of, step_s)]
    done = conclude(write_run(tmp_path, records, **{"data": {}, **sections(laws=["strong"])}))
    two = table_of(done, "Scaling")[1]
    assert "cannot tell: bs32-n1 is SUSPECT (other processes on " in " ".join(
        cell.text for cell in two.values()
    )
    answer = lines_of(done, "Advice, from what was measured")[0]
    assert answer.startswith("several devices: not decided: cannot tell: bs32-n1 is SUSPECT")
    assert "1.67" not in answer


def _beside(records: CaseRecords, load: Any) -> CaseRecords:
    told = tuple(replace(x, load=load) if hasattr(x, "load") else x for x in records.records)
    return replace(records, records=told)


MEMORY_GIB = {"adam": 4.0, "lion": 2.0, "sgd": 1.0}


def of_cases(tmp_path: Path, doubts: Mapping[str, Sequence[str]], metric: str, **more: Any) -> str:
    """Lay out a matrix of two configurations and a third that is between them."""
    values = {"adam": [0.9, 0.901, 0.9], "sgd": [0.8, 0.801, 0.8], "lion": [0.85, 0.851, 0.85]}
    cases = [
        replace(case, memory=replace(case.memory, peak_bytes=MEMORY_GIB[case.configuration] * 2.0**30))
        for case in cases_of(values, metric, memory_bytes=2.0**30, **more)
    ]
    by_case = {(x.case_id, x.replicate): [*map(doubt, doubts.get(x.configuration, ()))] for x in cases}
    result = matrix_result(
        cases, tree_evidence(tmp_path), title="cases", num_planned=9, doubts_of_cases=by_case
    )
    return " ".join(terminal_text(page(result), width=300).split())


def test_a_configuration_that_cannot_be_used_is_neither_best_nor_on_a_front(tmp_path: Path) -> None:
    left_out = of_cases(tmp_path, {"lion": ["cpu-neighbours"]}, "throughput")
    assert (
        "adam has the highest throughput: confirmed against each other configuration that can be used"
        in left_out
    )
    assert "at 95% over all 2 together" in left_out
    assert "neither best nor on a front: lion is SUSPECT (why)" in left_out
    assert "the Pareto front is adam, sgd Cases" in left_out
    the_best = of_cases(tmp_path, {"adam": ["cpu-neighbours"]}, "throughput")
    assert (
        "no best configuration by throughput: adam is SUSPECT (why), and its result is the best" in the_best
    )
    assert "the Pareto front is sgd, lion Cases" in the_best
    only_one = of_cases(tmp_path, {"adam": ["noisy"], "lion": ["noisy"]}, "throughput")
    assert "only sgd of 3 can be used" in only_one
    assert "the Pareto front is" not in only_one


def test_an_accuracy_wins_beside_neighbours_and_on_no_front_by_time(tmp_path: Path) -> None:
    crowded = {name: ["cpu-neighbours"] for name in ("adam", "sgd", "lion")}
    found = of_cases(tmp_path, crowded, "accuracy")
    assert "adam has the highest accuracy: confirmed against each other configuration, at 95%" in found
    assert (
        "accuracy against memory, using only confirmed differences: the Pareto front is adam, sgd, lion"
        in found
    )
    assert "accuracy against time" not in found.partition("Cases")[0].partition("Pareto")[2]


@pytest.mark.parametrize(("apart", "front"), [(0.002, None), (0.2, "adam, sgd, lion")])
def test_resident_memory_and_accuracies_that_are_not_shown_to_differ_form_no_front(
    apart: float, front: str | None, tmp_path: Path
) -> None:
    """Memory of process trees, 307.6 to 308.8 MiB at first: the figures trade, and launches scatter more."""
    cases = [
        replace(
            case,
            resident=Amount(
                basis="resident, process tree",
                peak_bytes=307.6 * 2**20 * (1 + apart * place) * (1 + 0.004 * (number % 2)),
            ),
        )
        for place, name in enumerate(("adam", "sgd", "lion"))
        for number, case in enumerate(
            cases_of({name: [0.9 * (1 + apart * place) * x for x in (0.99, 1.0, 1.01, 1.0)]})
        )
    ]
    result = matrix_result(cases, tree_evidence(tmp_path), title="cases", num_planned=12)
    sections = page(result).sections
    series = [one.name for x in sections if isinstance(x, Chart) and "memory" in x.title for one in x.series]
    text = " ".join(terminal_text(page(result), width=300).split())
    if front is None:
        assert "no best configuration by accuracy" in text
        assert "front" not in text
        assert series == ["others"]
    else:
        assert f"the Pareto front is {front}" in text
        assert "on the Pareto front" in series


def test_pairs_that_are_told_apart_hold_the_doubt_of_both() -> None:
    values = [[100.0 * exp(x) for x in own] for own in ((0.0, 0.01, -0.01, 0.005), (0.2, 0.215, 0.19, 0.2))]
    sides = [
        ComparedSide(name=n, values=v, doubts=(doubt("stalled"),)) for n, v in zip("AB", values, strict=True)
    ]
    found = compare_sides(*sides, better="higher", confidence=0.95, pairing=IN_TURNS)
    assert found.verdict == "faster"
    alone = replace(sides[0], doubts=())
    assert compare_sides(alone, sides[1], better="higher", confidence=0.95, pairing=IN_TURNS).ratio is None
