"""The page for whoever received a machine: what it opens with, what it is called, and how long it is."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from textwrap import wrap

import pytest
from rich.console import Console

from gpuproof.campaign.conclude import page_of_result
from gpuproof.config.load import load_config
from gpuproof.launches.subjects import device_indices
from gpuproof.records.page import HeatMap, Page, Table
from gpuproof.report.terminal import MOST_LINES, print_page
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate import SUITE
from machines_by_hand import HEALTHY, Faults, machine

SUBJECT = re.compile(r"\bhost/|\blink/|/gpu/")


def page_of(folder: Path, recipe: str, num_hosts: int, num_devices: int, faults: Faults = HEALTHY) -> Page:
    names = [f"node{number + 1}" for number in range(num_hosts)] if num_hosts > 1 else [""]
    places = [HostPlace(name=name, num_devices=num_devices) for name in names]
    config = load_config(recipe, ["--run.repeats=1", f"--distributed.nproc={num_devices}"]).config
    evidence = machine(folder, config, places, faults)
    result = SUITE.conclude(evidence).result
    return page_of_result(replace(result, device_indices=device_indices(evidence.launches)))


def screen_of(page: Page) -> list[str]:
    """What a terminal of 120 columns shows."""
    out = StringIO()
    console = Console(file=out, width=120, highlight=False, force_terminal=True, color_system=None)
    print_page(page, console, most_lines=MOST_LINES)
    lines = out.getvalue().splitlines()
    return [part for line in lines for part in wrap(line, 120) or [""]]


@pytest.fixture(scope="module")
def one_gpu(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(tmp_path_factory.mktemp("one"), "validate-quick", 1, 1)


def test_it_opens_with_what_the_verdict_means_and_a_table_of_what_was_measured(one_gpu: Page) -> None:
    assert one_gpu.verdict is not None
    assert one_gpu.verdict.reason.startswith("no problems found; undecided (% of the data sheet):")
    (measured,) = (section for section in one_gpu.sections if section.title == "Measured")
    assert isinstance(measured, Table)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in measured.rows}
    assert rows.keys() == {"GEMM bf16", "memory", "host → GPU", "GPU → host", "training"}
    assert rows["memory"][:3] == ["GPU 0 on node1", "3.00 TB/s", "open"]
    assert rows["memory"][5] == "62 %", "of 4.8 TB/s that an H200's data sheet says"
    assert [header.title for header in measured.headers] == [
        *("what", "of", "value", "", "expected", "others", "of sheet", "limited by")
    ]


def test_what_is_open_has_its_reason_and_the_command_that_closes_it(one_gpu: Page) -> None:
    shown = "\n".join(screen_of(one_gpu))
    assert "memory, a link to the host, training: measured, but there is no required rule" in shown
    assert "gpuproof baseline record NAME RUN" in shown
    assert "Not shown: What READY needs: 0 failed" not in shown


def test_devices_have_the_names_that_people_use_and_a_single_host_has_no_heat_map(one_gpu: Page) -> None:
    assert not [section for section in one_gpu.sections if isinstance(section, HeatMap)]
    assert not SUBJECT.search("\n".join(screen_of(one_gpu)))


@pytest.mark.parametrize(
    ("num_hosts", "faults"),
    [
        (1, HEALTHY),
        (1, Faults(are_values_wrong=True)),
        pytest.param(64, HEALTHY, marks=pytest.mark.long),
        pytest.param(64, Faults(are_values_wrong=True), marks=pytest.mark.long),
    ],
)
def test_a_node_of_eight_and_64_of_them_fit_on_a_screen(
    num_hosts: int, faults: Faults, tmp_path: Path
) -> None:
    shown = screen_of(page_of(tmp_path, "validate-prolog", num_hosts, 8, faults))
    assert len(shown) <= 60
    assert not SUBJECT.search("\n".join(shown))
    assert any(line.strip().startswith("GEMM bf16") for line in shown)
