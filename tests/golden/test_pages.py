"""One page in every format, as people and programs get it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuproof.report.formats import FORMATS, ReportFormat, render
from pages_by_hand import PAGE, RESULT

SUFFIX: dict[ReportFormat, str] = {
    "terminal": "txt",
    "markdown": "md",
    "html": "html",
    "json": "json",
    "csv": "csv",
    "junit": "xml",
}


@pytest.mark.parametrize("form", FORMATS)
def test_a_page(form: ReportFormat, golden: Callable[[str, str], None]) -> None:
    golden(f"pages/page.{SUFFIX[form]}", render(RESULT, PAGE, form))
