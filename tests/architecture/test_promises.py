"""docs/promises.md is what the markers of the tests say, and names rows that there are."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).parents[2]
PROGRAM: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "write_promises.py"))


def test_the_page_is_what_the_markers_say() -> None:
    written = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    assert written == PROGRAM["page"](), "run: python scripts/write_promises.py"


def test_a_marker_names_a_row_and_a_row_without_a_test_says_why() -> None:
    described = tomllib.loads((ROOT / "docs" / "promises.toml").read_text(encoding="utf-8"))
    marked = PROGRAM["tests_by_row"]()
    unknown = {
        row for row in marked if row not in described["rows"] and not row.startswith(("F0.", "F1.", "F4."))
    }
    assert unknown == set()
    assert set(described["open"]) <= set(described["rows"])
    assert set(described["rows"]) - set(marked) <= set(described["open"])


def test_every_row_of_a_section_is_there() -> None:
    rows = tomllib.loads((ROOT / "docs" / "promises.toml").read_text(encoding="utf-8"))["rows"]
    for section, last in (("S0", 36), ("S1", 27), ("S2", 28), ("S3", 22), ("S4", 17)):
        assert {row for row in rows if row.startswith(f"{section}.")} == {
            f"{section}.{number}" for number in range(1, last + 1)
        }


def test_markers_are_read_as_pytest_reads_them() -> None:
    source = (
        "@pytest.mark.promise('S1.1', 'F1.2')\n@other\ndef test_a():\n    pass\ndef test_b():\n    pass\n"
    )
    assert list(PROGRAM["marked_rows"](source)) == [("S1.1", "test_a"), ("F1.2", "test_a")]
