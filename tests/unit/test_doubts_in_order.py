"""Doubts are told with the likeliest cause first, and a SUSPECT page says it in its first line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from concluding import text_of
from gpu_run_by_hand import gpu_run
from gpuproof.campaign.conclude import conclude
from gpuproof.records.page import Notices, Table
from gpuproof.records.result import Doubt
from gpuproof.verdict.doubts.base import in_one_line, likely_first
from gpuproof.verdict.doubts.notices import doubt_notices, doubts_sections
from records_by_hand import QUIET, one_rank, steady_times, write_run


def doubt(code: str, validity: str = "SUSPECT") -> Doubt:
    return Doubt(validity=validity, code=code, reason="r", remedy="m")  # type: ignore[arg-type]


def test_who_disturbs_comes_before_what_it_does_and_what_is_impossible_before_all() -> None:
    codes = ("launches-differ", "noisy", "unheard-of", "cpu-steal", "gpu-neighbours")
    told = [*map(doubt, codes), doubt("too-short", "INVALID")]
    assert [found.code for found in likely_first(told)] == [
        *("too-short", "gpu-neighbours", "cpu-steal", "noisy", "launches-differ", "unheard-of")
    ]


def test_a_code_without_words_of_its_own_is_named_as_it_is() -> None:
    assert in_one_line([doubt("noisy"), doubt("not-heard-of")]) == (
        "most likely noisy steps; 1 more reason below"
    )


def test_the_first_line_of_a_suspect_page_names_the_likeliest_cause(tmp_path: Path) -> None:
    crowded = replace(QUIET, busy_cpu_s=5.0, run_queue_wait_s=0.5)
    times = [0.01 * (1 + 0.1 * (-1) ** i) for i in range(100)]
    report = conclude(write_run(tmp_path, [one_rank(times_s=times, load=crowded).records()]))
    assert [found.code for found in report.result.doubts] == ["noisy", "cpu-neighbours"]
    text = " ".join(text_of(report).split())
    assert text.startswith("SUSPECT: use with care: most likely other processes on the CPUs; 1 more")
    others = text.index("also effects of such other work: noisy steps [noisy]")
    assert text.index("other processes on node1") < others
    quiet = conclude(write_run(tmp_path, [one_rank(times_s=steady_times()).records()], run_id="quiet"))
    assert "most likely" not in text_of(quiet)


def test_what_nothing_beside_it_explains_is_said_in_full(tmp_path: Path) -> None:
    times = [0.01 * (1 + 0.1 * (-1) ** i) for i in range(100)]
    text = text_of(conclude(write_run(tmp_path, [one_rank(times_s=times).records()])))
    assert "the interquartile range of the step times" in " ".join(text.split())
    assert "effects of such other work" not in text


def fault(gpu: int, launch: int, what: str = "xid 63: row remapping recorded") -> Doubt:
    return replace(doubt("device-fault"), reason=f"GPU {gpu}: {what} (launch {launch})")


def test_a_fault_of_many_launches_is_told_once_with_their_numbers(tmp_path: Path) -> None:
    concluded = conclude(gpu_run(tmp_path))
    (why,) = [one for one in concluded.page.sections if isinstance(one, Notices)]
    assert len(concluded.result.doubts) == 3 * len(why.notices) == 6
    slowed, remapped = (notice.text for notice in why.notices)
    assert slowed.startswith("GPU 0: software thermal slowdown in 34 % of the window; SM clock 1,980 → 1,811")
    assert slowed.endswith("(launches 1, 2, 3 of 3; values are from the first)")
    assert remapped == "GPU 1: xid 63: row remapping recorded (launches 1, 2, 3 of 3)"


def test_devices_share_a_line_by_the_launches_in_which_they_had_the_fault() -> None:
    faults = [
        *(fault(gpu, launch) for launch in (1, 2) for gpu in (0, 1)),
        fault(2, 2),
        fault(0, 1, "xid 79"),
    ]
    assert [notice.text for notice in doubt_notices(faults, num_launches=2)] == [
        "GPU 0: xid 63: row remapping recorded (GPU 0, 1: launches 1, 2 of 2; GPU 2: launch 2 of 2)",
        "GPU 0: xid 79 (launch 1)",
    ]


def test_what_a_disturbance_leaves_is_one_line_whose_remedies_can_be_read() -> None:
    crowd = replace(doubt("cpu-neighbours"), reason="others (in 1 of 9 launches)")
    named, _, folded = doubts_sections([crowd, doubt("noisy"), doubt("stalled")], "Why", num_launches=9)
    assert isinstance(named, Notices)
    assert isinstance(folded, Table)
    seen = "such work was only seen in 1 of 9 launches, and may not explain"
    assert named.notices[-1].text == f"{seen}: stalls [stalled], noisy steps [noisy]"
    assert folded.is_folded
    assert [row[1].text for row in folded.rows] == ["→ m", "→ m"]


def test_a_pace_that_changes_by_itself_is_one_line_with_what_to_do() -> None:
    shaken = [doubt("unsteady"), doubt("launches-differ")]
    named, _, folded = doubts_sections(shaken, "Why", num_launches=5)
    assert isinstance(named, Notices)
    assert isinstance(folded, Table)
    (line,) = named.notices
    assert line.text.startswith("step time changed")
    assert line.text.endswith("[unsteady], launches that differ [launches-differ]")
    assert line.advice
    assert "measure_seconds" in line.advice
    assert len(folded.rows) == 2


def test_an_unsteady_machine_explains_nothing_where_a_cause_was_seen() -> None:
    throttled = [fault(0, 1, "software thermal slowdown"), doubt("unsteady"), doubt("noisy")]
    named, _, folded = doubts_sections(throttled, "Why", num_launches=1)
    assert isinstance(named, Notices)
    assert isinstance(folded, Table)
    assert [notice.code for notice in named.notices] == ["device-fault", "unsteady", "noisy"]
    assert not folded.rows


def test_what_cannot_be_judged_is_called_no_change_of_pace() -> None:
    unknown = [doubt("steadiness-unknown"), doubt("launches-differ")]
    named, _, folded = doubts_sections(unknown, "Why", num_launches=3)
    assert isinstance(named, Notices)
    assert isinstance(folded, Table)
    assert [notice.code for notice in named.notices] == ["launches-differ", "steadiness-unknown"]
    assert not folded.rows
