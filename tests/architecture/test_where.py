"""*Where is what* answers newcomers with files that are there and names that stand in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<question>[^|]+\?) \| `(?P<file>[^`]+)` \| `(?P<begin>[^`]+)` \|$", re.M)
ROWS = ROW.findall((ROOT / "docs" / "developers" / "where.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("question", "file", "begin"), ROWS)
def test_the_answer_to_a_question_is_one_file(question: str, file: str, begin: str) -> None:
    text = (ROOT / "src" / "gpuproof" / file).read_text(encoding="utf-8")
    assert re.search(rf"(?<!\w){re.escape(begin)}(?!\w)", text), question


def test_twenty_questions_are_answered() -> None:
    assert len({question for question, _, _ in ROWS}) >= 20
