"""The alerts, by promtool: each fires on its fault and on no healthy host, and asks for what is exported."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import recordings as rec
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.cli.monitor.serve import write_prometheus_files
from gpuproof.hardware.events import event_kinds
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.prometheus.families import families
from gpuproof.records.metrics import names
from gpuproof.records.readings import DriverEvent
from prometheus_tools import tool

CASES = Path(__file__).with_name("alerts_promtool.yml")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    (alerts, dashboard) = write_prometheus_files(tmp_path / "rules")
    assert dashboard.name == "gpuproof_dashboard.json"
    return alerts


def rules(path: Path) -> list[dict[str, Any]]:
    (group,) = YAML(typ="safe").load(path.read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_promtool_accepts_the_alerts(written: Path) -> None:
    checked = subprocess.run([tool("promtool"), "check", "rules", written], text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert f"{len(rules(written))} rules found" in checked.stdout


def test_each_alert_fires_on_its_fault_and_none_on_a_healthy_host(written: Path) -> None:
    cases = shutil.copy(CASES, written.parent)
    tried = subprocess.run([tool("promtool"), "test", "rules", cases], text=True, capture_output=True)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    fired = set(re.findall(r'alertname="(\w+)",alertstate="firing"', CASES.read_text(encoding="utf-8")))
    assert fired == {rule["alert"] for rule in rules(written)}


def test_the_alerts_ask_for_what_is_exported(written: Path) -> None:
    everything = dict.fromkeys((*names(kind="gauge"), *names(kind="counter")), 1.0)
    state = LiveState()
    identity = rec.identity(0, vendor="nvidia", static=dict.fromkeys(names(kind="static"), 40.0))
    xid = DriverEvent(monotonic_s=rec.MONOTONIC_S, physical_index=0, event="xid", code=79, message="")
    state.apply([rec.header([identity]), rec.sample(0, {0: everything}, reasons={0: ("idle",)}), xid])
    served = {sample.name for family in families(state, fresh=True) for sample in family.samples}
    asked = {name for rule in rules(written) for name in re.findall(r"\bgpuproof_\w+", rule["expr"])}
    assert len(asked) > 10
    assert asked <= served


def test_a_folder_that_cannot_be_made_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentUnfitError, match="file"):
        write_prometheus_files(tmp_path / "file")


def test_the_fatal_xids_of_the_alerts_are_those_that_fail_a_gpu(written: Path) -> None:
    listed = re.findall(r'xid=~"([\d|]+)"', written.read_text(encoding="utf-8"))
    fatal = {
        code for (source, code), kind in event_kinds().items() if source == "xid" and kind.status == "FAIL"
    }
    assert [set(codes.split("|")) for codes in listed] == [fatal, fatal]
