"""Pages in a browser: what they draw is what was measured, and people can look into it, whoever they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import isclose
from pathlib import Path
from typing import Any

import pytest

from chromium import Browser, OpenPage
from every_page import made_pages
from gpuproof.readings.recording import load_recording
from gpuproof.records.page import Chart
from gpuproof.records.result import Result
from gpuproof.verdict.expectations import load_expectations
from pages_by_hand import HOSTILE

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
NAMES = sorted(made_pages())
TIMED = ("training", "gpu_run", "monitor_show", "monitor_compare", "validate")
OF_RECORDS = (
    "How step times are distributed",
    "Step times,",
    "Over time",
    "A against B",
    "How the readings",
    "Load balance",
)
"""Titles of what is drawn from records and readings, and no measures."""
WIDE, NARROW = 1280, 390
OFF_SCREEN = """
[...document.querySelectorAll("body *")]
  .filter((one) => one.checkVisibility && one.checkVisibility() && !one.closest(".uplot, .scroll"))
  .filter((one) => { const at = one.getBoundingClientRect();
    return at.width && (at.right > innerWidth + 1 || at.left < -1); })
  .map((one) => one.outerHTML.slice(0, 120))
"""
"""Elements that reach out of the window; a heat map of very many hosts scrolls by itself."""
VIOLATIONS = """
axe.run(document, {}).then((all) =>
  all.violations.map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 160)} ${one.nodes[0].failureSummary}`))
"""
MARKS = """
[...document.querySelectorAll("figure .broad svg")].flatMap((svg) =>
  [...svg.querySelectorAll("[data-series]")].map((one) => [svg.ariaLabel, { ...one.dataset }]))
"""
SHOWN = """
Object.fromEntries([...document.querySelectorAll(".names-of")].map((head) =>
  [head.firstChild.textContent, [...head.querySelectorAll("output")].map((one) => one.textContent)]))
"""
"""What stands beside the names of each plot."""
Open = Callable[..., OpenPage]


@pytest.fixture
def opened(browser: Browser, page_of: Callable[[str], Any]) -> Iterator[Open]:
    """Return what opens the page of a kind; all are closed in the end."""
    pages: list[Any] = []

    def open_page(name: str, **how: Any) -> OpenPage:
        pages.append(browser.page(page_of(name).path, **how))
        page: OpenPage = pages[-1].__enter__()
        if how.get("script", True):
            page.settle()
        return page

    yield open_page
    for page in pages:
        page.__exit__(None, None, None)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_nothing_asks_for_nothing_and_fits(name: str, opened: Open) -> None:
    page = opened(name, width=WIDE)
    assert page.complaints() == []
    if name not in ("by_hand", "hostile"):  # no run or recording stands behind these
        strip = "[...document.querySelectorAll('.provenance, .unknown')].map((one) => one.textContent)"
        facts = " ".join(page.evaluate(strip))
        assert "date" in facts
        assert "gpuproof" in facts
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDE
    assert page.evaluate(OFF_SCREEN) == []
    page.resize(NARROW)
    page.settle()
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
    assert page.evaluate(OFF_SCREEN) == []
    assert page.complaints() == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_used_by_everybody(name: str, opened: Open) -> None:
    page = opened(name)
    page.evaluate(f"{AXE}; undefined")
    assert page.evaluate(VIOLATIONS) == []
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.settle()
    assert page.evaluate(VIOLATIONS.replace("{}", "{ runOnly: ['color-contrast'] }")) == []


def numbers_of(result: Result) -> list[float]:
    """Return all that a mark may stand for: values, ends of intervals, launches, and what was judged."""
    figures: set[float | None] = {figure.value for figure in load_expectations().figures.values()}
    for measure in result.measures:
        figures |= {measure.value, *(launch.value for launch in measure.launches)}
        figures |= {measure.interval.low, measure.interval.high} if measure.interval else set()
    figures |= {judged.outcome.measured_value for judged in result.outcomes}
    return sorted(figure for figure in figures if figure is not None)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("hostile", "by_hand", "matrix")])
def test_marks_are_measures(name: str, opened: Open, page_of: Callable[[str], Any]) -> None:
    made = page_of(name).made
    numbers = numbers_of(made.result)
    marks = opened(name).evaluate(MARKS)
    charts = [section for section in made.page.sections if isinstance(section, Chart)]
    drawn = [chart for chart in charts if not chart.title.startswith(OF_RECORDS)]
    assert {title for title, _ in marks} >= {chart.title for chart in drawn}
    for title, data in marks:
        if not title.startswith(OF_RECORDS):  # bars and ranges in rows lie along x
            ends = [float(data[key]) for key in ("x", "y", "low") if key in data]
            is_one = data["series"] == "ideal" or 1.0 in ends
            assert is_one or any(isclose(n, end, rel_tol=1e-9) for n in numbers for end in ends), data


def test_a_timeline_is_the_records_and_readings(opened: Open, page_of: Callable[[str], Any]) -> None:
    made = page_of("gpu_run").made
    (block,) = json.loads(opened("gpu_run").evaluate("document.getElementById('timelines').textContent"))
    stored = json.loads((made.folder / "timelines.json").read_text())
    assert block == stored[0]
    readings, steps_s = recorded_numbers(made.folder)
    charts = {chart["y"]["label"]: chart for chart in block["charts"]}
    power = [y for series in charts["Power"]["series"] for y in series["y"] if y is not None]
    assert set(power) <= readings["power_w"]
    assert (min(power), max(power)) == (min(readings["power_w"]), max(readings["power_w"]))
    times_s = [y for series in charts["Step time"]["series"] for y in series["y"] if y is not None]
    assert set(times_s) <= steps_s
    assert max(times_s) == max(steps_s)
    assert sum(sum(series["y"]) for series in stored[1]["charts"][0]["series"]) == len(times_s)
    assert {shade["name"] for shade in charts["Power"]["shades"]} >= {"launch 1", "launch 3", "throttled"}


def recorded_numbers(folder: Path) -> tuple[dict[str, set[float]], set[float]]:
    """Return the readings by metric, and the step times, as the journals of a run have them to six digits."""
    readings: dict[str, set[float]] = {}
    for path in folder.glob("cases/*/*/monitor-*.jsonl"):
        for track in load_recording(path).devices:
            for metric in track.metrics:
                readings.setdefault(metric, set()).update(float(f"{x:.6g}") for x in track.readings(metric))
    journals = [path.read_text() for path in folder.glob("cases/*/*/rank-*.jsonl")]
    records = [json.loads(line) for text in journals for line in text.splitlines()]
    of_steps = [one for one in records if one["kind"] == "steps" and one["phase"] == "measure"]
    return readings, {float(f"{time_s:.6g}") for one in of_steps for time_s in one["durations_s"]}


def range_of(page: OpenPage) -> tuple[float, float]:
    begin, end = page.evaluate(
        "(({ from, to }) => [from, to])(document.querySelector('[data-timeline]').dataset)"
    )
    return float(begin), float(end)


def press(page: OpenPage, name: str) -> None:
    page.evaluate(
        f"[...document.querySelectorAll('.zoom button')].find((b) => b.textContent == '{name}').click()"
    )


@pytest.mark.parametrize("name", TIMED)
def test_a_timeline_zooms_by_button_key_and_mouse(name: str, opened: Open) -> None:
    page = opened(name)
    first, last = range_of(page)
    press(page, "Zoom in")
    begin, end = range_of(page)
    assert end - begin == pytest.approx((last - first) / 2, rel=1e-6)
    press(page, "Later")
    assert range_of(page)[1] > end
    press(page, "Whole")
    assert range_of(page) == (first, last)
    page.evaluate("document.querySelector('.zoom button').focus()")
    page.key("Enter", 13)
    page.settle()
    assert range_of(page)[1] - range_of(page)[0] == pytest.approx((last - first) / 2, rel=1e-6)
    press(page, "Whole")
    left, right, y = over_of(page)
    page.mouse("mouseMoved", left + 0.25 * (right - left), y)
    page.mouse("mousePressed", left + 0.25 * (right - left), y, is_down=True)
    page.mouse("mouseMoved", left + 0.75 * (right - left), y, is_down=True)
    page.mouse("mouseReleased", left + 0.75 * (right - left), y, is_down=True)
    page.settle()
    begin, end = range_of(page)
    assert (begin, end) == pytest.approx((0.75 * first + 0.25 * last, 0.25 * first + 0.75 * last), rel=0.02)
    assert page.complaints() == []


def over_of(page: OpenPage) -> tuple[float, float, float]:
    """Scroll to the first plot; return where it begins and ends, and a height in it."""
    left, right, top, bottom = page.evaluate(
        """(() => { const over = document.querySelector(".u-over"); over.scrollIntoView({ block: "center" });
             const at = over.getBoundingClientRect(); return [at.left, at.right, at.top, at.bottom]; })()"""
    )
    return left, right, (top + bottom) / 2


def test_hovering_shows_the_reading(opened: Open, page_of: Callable[[str], Any]) -> None:
    page = opened("gpu_run")
    left, right, y = over_of(page)
    page.mouse("mouseMoved", left + 0.2 * (right - left), y)
    page.settle()
    outputs = page.evaluate(SHOWN)
    readings, _ = recorded_numbers(page_of("gpu_run").made.folder)
    assert len(outputs["Power"]) == 2
    for text in outputs["Power"]:
        value, unit = text.split()
        assert unit == "W"
        assert float(value) in {float(f"{one:.4g}") for one in readings["power_w"]}


def test_a_series_is_hidden_and_shown_again(opened: Open) -> None:
    page = opened("gpu_run")
    button = (
        "[...document.querySelectorAll('.names-of button')].find((b) => b.textContent.startsWith('GPU 1'))"
    )
    page.evaluate(f"{button}.focus()")
    page.key("Enter", 13)
    assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    page.key("Enter", 13)
    assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "true"


def test_without_a_script_and_on_paper_a_timeline_is_a_picture(opened: Open) -> None:
    is_seen = "getComputedStyle(document.querySelector('figure > .static')).display != 'none'"
    assert opened("gpu_run", script=False).evaluate(is_seen)
    page = opened("gpu_run")
    assert not page.evaluate(is_seen)
    page.send("Emulation.setEmulatedMedia", media="print")
    page.settle()
    assert page.evaluate(is_seen)


def test_the_policy_runs_no_other_script_and_style(opened: Open) -> None:
    page = opened("gpu_run")
    page.evaluate(
        """(() => { for (const name of ["script", "style"]) { const one = document.createElement(name);
             one.textContent = name == "script" ? "window.ran = true" : "h1 { display: none }";
             document.head.append(one); } })()"""
    )
    assert page.evaluate("window.ran === undefined")
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).display") == "block"
    assert len([text for text in page.complaints() if "Content Security Policy" in text]) == 2


def test_hostile_texts_are_texts(opened: Open) -> None:
    page = opened("hostile")
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.evaluate("document.querySelectorAll('td > b, img, a[href^=http], iframe').length") == 0
    text = page.evaluate("document.body.textContent")
    assert HOSTILE.split("\x1b")[0].strip() in " ".join(text.split())
    names = json.loads(page.evaluate("document.getElementById('timelines').textContent"))
    assert "<script>" in json.dumps(names)


def test_a_cell_of_a_heat_map_opens_to_its_outcome_by_keyboard(opened: Open) -> None:
    page = opened("validate_hosts")
    page.evaluate("document.querySelector('.heat .bad a').focus()")
    page.key("Enter", 13)
    page.settle()
    target = page.evaluate("location.hash")
    assert target.startswith("#map-")
    assert page.evaluate(f"document.querySelector('{target}').checkVisibility()")
    assert "FAIL" in page.evaluate(f"document.querySelector('{target}').textContent")
