"""docs/verdicts.md explains every code of a doubt and every check by name, and nothing that there is not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuproof.doctor import host, meeting, network
from gpuproof.launchers.kubernetes import checks as cluster
from gpuproof.records.page import Notices, Page
from gpuproof.records.result import Doubt
from gpuproof.report.formats import render_page
from gpuproof.suites.validate.counted import SAME, TESTED, THERE
from gpuproof.verdict import nccl_settings
from gpuproof.verdict.check import checks_in
from gpuproof.verdict.checks.registry import CHECKS
from gpuproof.verdict.doubts.base import LIKELY
from gpuproof.verdict.doubts.notices import doubt_notices

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/verdicts.md").read_text(encoding="utf-8")
OF_A_COURSE = {"host answers", THERE, TESTED, SAME, "wrong values"}
"""Checks of a validation's own course that are called the same for every case."""


def sections() -> Iterator[tuple[str, str]]:
    """Yield the title and the text of each section of the page, those below it included."""
    parts = re.split(r"(?m)^## ", PAGE)[1:]
    yield from ((part.partition("\n")[0], part) for part in parts)


def rows(title: str) -> dict[str, list[str]]:
    """Return the rows of the tables in a section, by each code or name that stands in their first cell."""
    (text,) = [text for name, text in sections() if name.startswith(title)]
    table = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return {name: cells for cells in table for name in re.findall(r"`([^`]+)`", cells[0])}


def codes_in_source() -> Iterator[str]:
    """Yield the code of each doubt as a pattern: of one that is put together, with what may stand there."""
    for path in (ROOT / "src/gpuproof").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            node.targets[0].id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield from map(pattern, codes_of(node, constants))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                constants[node.target.id] = node.value


def codes_of(call: ast.Call, constants: dict[str, ast.expr]) -> Iterator[ast.expr]:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    places = [word.value for word in call.keywords if word.arg == "code"]
    places += call.args[:1] if name in ("suspect", "invalid") else []
    if name in ("suspect", "invalid", "Doubt"):
        for place in places:
            yield constants.get(place.id, place) if isinstance(place, ast.Name) else place


def pattern(code: ast.expr) -> str:
    match code:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=values):
            return "".join(pattern(value) for value in values)
    return "[a-z-]+"


def test_every_doubt_is_explained_and_every_explanation_is_of_a_doubt() -> None:
    documented = rows("Doubts about a measurement")
    patterns = {text for text in codes_in_source() if text != "[a-z-]+"}
    assert len(patterns) > 45
    explained = {text: [code for code in documented if re.fullmatch(text, code)] for text in patterns}
    assert [text for text, codes in explained.items() if not codes] == []
    assert set(documented) - {code for codes in explained.values() for code in codes} <= OF_CONSTANTS
    assert set(LIKELY) <= set(documented)


OF_CONSTANTS = {
    *("cpu-neighbours", "device-fault", "readings-lost", "wrong-results"),
    *("data-bound", "host-bound", "launches-differ", "short-at-power-cap"),
}
"""Codes that modules take from one another by name."""


def test_codes_that_are_passed_on_by_name_are_what_their_modules_say() -> None:
    from gpuproof.verdict.announced import CODE
    from gpuproof.verdict.doubts.base import SHORT_AT_POWER_CAP, WRONG
    from gpuproof.verdict.doubts.interference import FAULT, NEIGHBOURS_CODE
    from gpuproof.verdict.doubts.rules import LAUNCHES_DIFFER
    from gpuproof.verdict.doubts.window import LIMITS

    assert {
        WRONG,
        SHORT_AT_POWER_CAP,
        CODE,
        FAULT,
        NEIGHBOURS_CODE,
        LAUNCHES_DIFFER,
        *LIMITS.values(),
    } == OF_CONSTANTS
    assert set(rows("Doubts about a measurement")) >= OF_CONSTANTS


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Checks of a machine", {item.name for item in checks_in(host)}),
        (
            "Checks over several hosts",
            {x.name for module in (network, nccl_settings, meeting) for x in checks_in(module)},
        ),
        ("Checks of a Kubernetes cluster", {item.name for item in checks_in(cluster)}),
        ("Checks of a fleet", set(CHECKS) | OF_A_COURSE),
    ],
)
def test_every_check_is_explained_and_every_explanation_is_of_a_check(title: str, names: set[str]) -> None:
    documented = {name for name in rows(title) if "CASE" not in name and not name.startswith("--")}
    assert documented == names


def test_every_row_says_why_and_what_to_do() -> None:
    for title, _ in sections():
        for name, cells in rows(title).items():
            assert len(cells) == 4, name
            assert all(cell.strip() for cell in cells), name


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("terminal", "steps scatter [noisy]"),
        ("markdown", "steps scatter `noisy`"),
        ("html", '<code class="faint">noisy</code>'),
    ],
)
def test_pages_show_the_code_beside_the_doubt(form: str, text: str) -> None:
    doubt = Doubt(validity="SUSPECT", code="noisy", reason="steps scatter", remedy="look")
    why = Notices(title="Why", notices=doubt_notices([doubt]))
    page = Page(title="t", verdict=None, sections=(why,))
    assert text in render_page(page, form)  # type: ignore[arg-type]  # one of its literals
