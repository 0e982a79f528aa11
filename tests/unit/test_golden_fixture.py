"""The golden fixture itself: it fails on a missing file and on a difference, and writes only when asked."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent.parent / "conftest.py"
pytest_plugins = ["pytester"]


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(CONFTEST.read_text(encoding="utf-8"))
    pytester.makepyfile("def test_it(golden): golden('it.txt', 'new')")
    return pytester


def test_a_missing_file_fails_and_is_not_written(project: pytest.Pytester) -> None:
    project.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(failed=1)
    assert not (project.path / "it.txt").exists()


def test_a_difference_fails_and_keeps_the_file(project: pytest.Pytester) -> None:
    (project.path / "it.txt").write_text("old", encoding="utf-8")
    project.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(failed=1)
    assert (project.path / "it.txt").read_text(encoding="utf-8") == "old"


def test_the_option_writes_the_file_and_the_next_run_passes(project: pytest.Pytester) -> None:
    project.runpytest_inprocess("-p", "no:cacheprovider", "--update-golden").assert_outcomes(passed=1)
    assert (project.path / "it.txt").read_text(encoding="utf-8") == "new"
    project.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
