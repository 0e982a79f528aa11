"""Every kind of run is headed by the measure that it declares, however little of it was measured.

A run without figures says of how many parts there are none, or nothing; one with figures says the declared
one, with its uncertainty, and never what happens to come first among its measures.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from contract.test_suites import (
    ANY_END,
    EVERYWHERE,
    MEMBERS,
    Ending,
    UnderTest,
    Walk,
    done,
    failed,
    here_or_by_host,
    lost,
)
from gpuproof.campaign.conclude import conclude_older
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import NOTHING_MEASURED
from old_tree_by_hand import tree_of_recordings

DECLARED: Mapping[str, str] = {
    "recipe": r"[\d,]+ samples/s",
    "inference": r"[\d,]+ samples/s",
    "sweep": r"[\d,]+ samples/s",
    "batch_limit": r"[\d,]+ samples/s",
    "load": r"\d+ of 12 tests",
    "serving": r"[\d.]+ ms p50 latency",
    "serving search": r"[\d,]+ requests/s|no highest rate",
    "scale": r"[\d.]+ × on \d+ devices \(.*\)|\d+ devices: cannot tell: .+"
    r"|[\d,]+ samples/s (±[\d.]+ %|\(uncertainty unknown\)), batch \d+ on \d devices?",
    "validate": r"(not shown|failed): .+|.+ was measured FAIL: .+",
    "ab": r"throughput .+ %.*|no ratio for throughput|[01] of 2 points",
    "probe": r"[\d.]+ GB/s link bandwidth",
    "collective": r"[\d.]+ GB/s busbw, all_reduce of [\d.]+ MiB",
    "matrix": r"\d+ of 6 cases",
}
"""Kind of run → what it is headed by where something was measured."""
NOTHING = r"(0 of \d+ (points|hosts|tests|cases))?"
ENDINGS: Mapping[str, Sequence[Ending]] = {
    "all done": (done,),
    "all failed": (failed("exception"),),
    "all lost": (lost,),
    "some of each": ANY_END,
}
CONCLUDING = [(name, where) for name, where in EVERYWHERE if where == "here" or MEMBERS[name].has_host_form]


def headline_of(suite: UnderTest, launches: Sequence[CaseRecords], folder: Path) -> tuple[str, str, str]:
    """Return verdict, headline, and the uncertainty that the page gives beside it."""
    result = suite.suite.conclude(suite.evidence(launches, folder)).result
    verdict = suite.suite.page(result).verdict
    assert verdict is not None
    return result.verdict, result.headline, verdict.uncertainty


def assert_declared(name: str, where: str, verdict: str, headline: str, uncertainty: str) -> None:
    if verdict == NOTHING_MEASURED:
        assert re.fullmatch(NOTHING, headline)
        return
    of_hosts = r"|\d of 3 hosts" if where == "by host" else ""
    assert re.fullmatch(f"{DECLARED[name]}{of_hosts}", headline)
    is_rate = re.fullmatch(r"[\d.,]+ (samples/s|requests/s|ms|GB/s).*", headline)
    if is_rate and name != "scale":  # which has it in its words
        assert uncertainty


@pytest.mark.parametrize(("name", "where"), CONCLUDING)
@pytest.mark.parametrize("ending", ENDINGS)
def test_it_is_the_declared_measure(name: str, where: str, ending: str, tmp_path: Path) -> None:
    suite = here_or_by_host((name, where))
    settled = Walk(suite, 0, endings=ENDINGS[ending]).run().settled
    for num_settled in {0, 1, 2, len(settled)}:
        assert_declared(name, where, *headline_of(suite, settled[:num_settled], tmp_path))


def test_every_kind_of_run_declares_one() -> None:
    assert set(DECLARED) == set(MEMBERS)


TWO = ("resnet18_adamwprune_state_70", "resnet18_adamw_magnitude_70")


@pytest.mark.parametrize(
    ("failed_tests", "absent_tests", "headline"),
    [
        ((), (), "mean memory 1,381.5 MiB compared with 1,494.0 MiB: 7.5 % less .* cannot tell .*"),
        ((), TWO[1:], "1 of 1 cases"),
        (TWO[:1], (), "1 of 2 cases"),
        (TWO, (), "0 of 2 cases"),
    ],
    ids=["two", "one test", "one that failed", "all failed"],
)
def test_an_old_tree_is_headed_by_memory_or_by_how_many_are_done(
    failed_tests: Sequence[str], absent_tests: Sequence[str], headline: str, tmp_path: Path
) -> None:
    folder = tree_of_recordings(tmp_path)
    for test in failed_tests:
        (folder / test / "error.txt").write_text("out of memory")
    for test in absent_tests:
        shutil.rmtree(folder / test)
    concluded = conclude_older(folder)
    assert concluded is not None
    assert re.fullmatch(headline, concluded.result.headline)
