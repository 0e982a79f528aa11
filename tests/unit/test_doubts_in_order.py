"""Doubts are told with the likeliest cause first, and a SUSPECT page says it in its first line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from concluding import text_of
from gpuproof.conclude import conclude
from gpuproof.records.result import Doubt
from gpuproof.verdict.doubts.base import in_one_line, likely_first
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
        "most likely steps that scatter; 1 more reason below"
    )


def test_the_first_line_of_a_suspect_page_names_the_likeliest_cause(tmp_path: Path) -> None:
    crowded = replace(QUIET, busy_cpu_s=5.0, run_queue_wait_s=0.5)
    times = [0.01 * (1 + 0.1 * (-1) ** i) for i in range(100)]
    report = conclude(write_run(tmp_path, [one_rank(times_s=times, load=crowded).records()]))
    assert [found.code for found in report.result.doubts] == ["noisy", "cpu-neighbours"]
    text = " ".join(text_of(report).split())
    assert text.startswith("SUSPECT: use with care: most likely other processes on the processors; 1 more")
    others = text.index("besides as such work beside it causes: steps that scatter [noisy]")
    assert text.index("other processes on node1") < others
    quiet = conclude(write_run(tmp_path, [one_rank(times_s=steady_times()).records()], run_id="quiet"))
    assert "most likely" not in text_of(quiet)


def test_what_nothing_beside_it_explains_is_said_in_full(tmp_path: Path) -> None:
    times = [0.01 * (1 + 0.1 * (-1) ** i) for i in range(100)]
    text = text_of(conclude(write_run(tmp_path, [one_rank(times_s=times).records()])))
    assert "the interquartile range of the step times" in " ".join(text.split())
    assert "besides" not in text
