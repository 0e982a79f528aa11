"""docs/guides/monitor.md says what the code does: commands parse, the table is the catalogue, files exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import get_args

import click
import pytest

from gpuproof.cli.entry.group import LazyGroup
from gpuproof.cli.monitor import monitor
from gpuproof.records.metrics import METRICS
from gpuproof.records.readings import ThrottleReason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/monitor.md").read_text(encoding="utf-8")
MORE = sorted((ROOT / "docs/guides").glob("monitor-*.md"))
ALL = "".join([PAGE, *(page.read_text(encoding="utf-8") for page in MORE)])
DEVICES = ROOT / "src/gpuproof/devices"
THROTTLE_TIME = "throttle_time_REASON_s"


def table() -> dict[str, list[str]]:
    """Metric → lane, the three vendors' sources, and the Prometheus name."""
    lines = re.findall(r"^\| `(\w+)` \| (fast|slow|once) \| (.+) \|$", PAGE, re.MULTILINE)
    return {name: [lane, *rest.split(" | ")] for name, lane, rest in lines}


def test_the_table_is_the_catalogue() -> None:
    documented = {name: lane for name, (lane, *_) in table().items()}
    expected = {
        name: metric.lane or "once"
        for name, metric in METRICS.items()
        if not name.startswith("throttle_time_")
    }
    assert documented == {**expected, THROTTLE_TIME: "slow"}


def test_the_table_names_what_prometheus_gets() -> None:
    for name, (*_, exported) in table().items():
        if name != THROTTLE_TIME:
            total = "_total" if METRICS[name].kind == "counter" else ""
            assert exported == f"`{METRICS[name].exported.removeprefix('gpuproof_gpu_')}{total}`"


@pytest.mark.parametrize(("column", "adapter"), [(1, "nvidia/*.py"), (2, "amd/*.py"), (3, "intel/*.py")])
def test_a_vendors_column_has_a_dash_where_its_adapter_does_not_know_the_metric(
    column: int, adapter: str
) -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in DEVICES.glob(adapter))
    documented = {name for name, row in table().items() if row[column] != "–"} - {THROTTLE_TIME}
    assert documented == {name for name in table() if f'"{name}"' in code}


def test_every_throttle_reason_is_named() -> None:
    for reason in get_args(ThrottleReason):
        assert f"`{reason}`" in PAGE


@pytest.mark.parametrize("line", re.findall(r"^(?:.*\| )?gpuproof monitor (.+)$", ALL, re.MULTILINE))
def test_every_command_of_the_page_is_one_that_parses(line: str) -> None:
    name, *arguments = shlex.split(line)
    assert isinstance(monitor, LazyGroup)
    command = monitor.get_command(click.Context(monitor), name)
    assert command is not None
    command.make_context(name, arguments)


def test_pictures_and_files_that_the_page_names_are_there_and_small() -> None:
    pictures = re.findall(r"\]\((images/[^)]+)\)", PAGE)
    assert len(pictures) == 3
    assert all((ROOT / "docs" / picture).stat().st_size < 200_000 for picture in pictures)
    for file in re.findall(r"`((?:src|tests|benchmarks)/[\w./]+)", PAGE):
        assert (ROOT / file).is_file(), file
    assert len(PAGE.splitlines()) <= 250
