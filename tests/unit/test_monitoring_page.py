"""What pages say of the monitor and no code holds: where adapters read a metric, pictures, files."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from gpuproof.records.metrics import METRICS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/monitor.md").read_text(encoding="utf-8")
DEVICES = ROOT / "src/gpuproof/devices"
THROTTLE_TIME = "throttle_time_REASON_s"
with (ROOT / "scripts/reference/metric_sources.csv").open(encoding="utf-8", newline="") as lines:
    SOURCES = {row["metric"]: row for row in csv.DictReader(lines)}


def test_the_sources_are_those_of_the_catalogue() -> None:
    plain = {name for name in METRICS if not name.startswith("throttle_time_")}
    assert set(SOURCES) == {*plain, THROTTLE_TIME}


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
def test_a_vendors_column_has_a_dash_where_its_adapter_does_not_know_the_metric(vendor: str) -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in DEVICES.rglob("*.py")
        if vendor in (path.stem, path.parent.name)
    )
    documented = {name for name, row in SOURCES.items() if row[vendor] != "–"} - {THROTTLE_TIME}
    assert documented == {name for name in SOURCES if f'"{name}"' in code}


def test_pictures_and_files_that_the_page_names_are_there_and_small() -> None:
    pictures = re.findall(r"\]\(\.\./(images/[^)]+)\)", PAGE)
    assert len(pictures) == 3
    assert all((ROOT / "docs" / picture).stat().st_size < 200_000 for picture in pictures)
    for file in re.findall(r"`((?:src|tests|benchmarks)/[\w./]+)", PAGE):
        assert (ROOT / file).is_file(), file
