"""Host facts read from generated trees, and the checks that judge them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuproof.base.files import packaged_rows
from gpuproof.records.outcome import Judged
from gpuproof.verdict.check import ask
from gpuproof.verdict.checks.host import NAME, judge_host_settings
from gpuproof.verdict.facts import FleetFacts
from gpuproof.worker.host.settings import TABLE, UNKEPT_CLOCK_US, host_settings

HEALTHY = {
    "sys/class/dmi/id/product_name": "p5.48xlarge",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance",
    "proc/sys/kernel/numa_balancing": "0",
    "proc/sys/vm/nr_hugepages": "0",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "proc/vmstat": "nr_free_pages 12\noom_kill 0\n",
    "proc/sys/kernel/hung_task_detect_count": "0",
    "proc/1/stat": "1 (systemd) S 0 1",
    "proc/77/stat": "77 (nv-fabricmanage) S 1 77",
    "usr/lib/x86_64-linux-gnu/libcuda.so.1": "ELF",
    "usr/lib/x86_64-linux-gnu/libc.so.6": "",
    "var/lib/dpkg/status": (
        "Package: bash\nStatus: install ok installed\nVersion: 5.2\n\n"
        "Package: nvidia-container-toolkit\nStatus: install ok installed\n"
        "Architecture: amd64\nVersion: 1.17.8-1\n"
    ),
}
WRONG = {
    "clock source": ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
    "CPU governor": ("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave"),
    "NUMA balancing": ("proc/sys/kernel/numa_balancing", "1"),
    "blocked processes": ("proc/40/stat", "40 (a (b) c) D 1 40"),
    "OOM kills": ("proc/vmstat", "oom_kill 3\n"),
    "hung tasks": ("proc/sys/kernel/hung_task_detect_count", "2"),
    "empty NVIDIA libraries": ("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", ""),
}


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def gpu(place: int, **changes: Any) -> dict[str, Any]:
    return {
        "vendor": "nvidia",
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": f"GPU-{place}",
        "static": {"temp_max_c": 87, "fabric_state": "completed", **changes.get("static", {})},
        "state": {"temp_gpu_c": 30 + place, **changes.get("state", {})},
    }


def judged(settings: dict[str, Any], gpus: list[dict[str, Any]], num_nodes: int = 2) -> list[Judged]:
    node = {
        "settings": settings,
        "accelerators": {"devices": gpus},
        "affinity": {"numa_nodes": {str(number): "0" for number in range(num_nodes)}},
    }
    return ask([judge_host_settings], FleetFacts(hosts={"a": node}))


def statuses(items: list[Judged]) -> dict[str, str]:
    return {item.name: item.outcome.status for item in items}


@pytest.mark.parametrize("num_gpus", [1, 8])
def test_a_healthy_host_is_one_line(tmp_path: Path, num_gpus: int) -> None:
    gpus = [gpu(place) for place in range(num_gpus)]
    items = judged(host_settings({}, gpus, root=tree(tmp_path, HEALTHY), clock=lambda: 0), gpus)
    assert statuses(items) == {NAME: "PASS", **({"PCIe ACS": "SKIP"} if num_gpus > 1 else {})}
    line = items[0].outcome.measured or ""
    assert "clock source tsc" in line
    assert "transparent huge pages madvise" in line
    assert "NVLink fabric completed" in line
    assert "fabric manager running" in line
    assert "container toolkit 1.17.8-1" in line
    spread = "30 °C" if num_gpus == 1 else "30 to 37 °C, a spread of 7 K"
    assert f"temperature before work {spread};" in line


def test_what_could_not_be_read_passes_nothing_and_is_named(tmp_path: Path) -> None:
    settings = host_settings({}, [gpu(0)], root=tree(tmp_path, HEALTHY), clock=lambda: 0)
    settings["OOM kills"] = {"value": None, "missing": "Permission denied"}
    fine, unread = judged(settings, [gpu(0)])
    assert (fine.outcome.status, unread.outcome.status) == ("PASS", "SKIP")
    assert "OOM kills" not in str(fine.outcome.measured)
    assert unread.outcome.reason == "OOM kills (Permission denied)"
    assert not unread.is_required


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_setting_is_its_own_advice(tmp_path: Path, name: str) -> None:
    place, text = WRONG[name]
    items = judged(
        host_settings({}, root=tree(tmp_path, {**HEALTHY, place: text}), clock=lambda: 0), [gpu(0)]
    )
    warned = [item for item in items if item.outcome.status == "WARN"]
    assert [item.name for item in warned] == [name]
    assert not warned[0].is_required
    assert str(warned[0].outcome.source).startswith("https://")


def test_a_laptop_without_a_gpu_is_asked_nothing_of_gpus(tmp_path: Path) -> None:
    files = {**HEALTHY, "proc/sys/kernel/numa_balancing": "1", WRONG["empty NVIDIA libraries"][0]: ""}
    items = judged(
        host_settings({"NCCL_TOPO_FILE": "/gone.xml"}, root=tree(tmp_path, files), clock=lambda: 0), []
    )
    assert statuses(items) == {NAME: "PASS"}


def test_what_a_container_hides_is_missing_and_no_evidence(tmp_path: Path) -> None:
    settings = host_settings({}, root=tmp_path, clock=lambda: -1)
    assert settings["clock source"] == {"value": None, "missing": "No such file or directory"}
    assert settings["CPU governor"]["value"] is None
    assert settings["blocked processes"] == {"value": None, "missing": "no process is visible"}
    items = judged({**settings, "NCCL topology file": {"value": None, "missing": "x"}}, [gpu(0)])
    assert statuses(items)[NAME] == "SKIP"
    assert "clock source (No such file or directory)" in (items[0].outcome.reason or "")
    assert not [item for item in items if item.outcome.status == "WARN"]


@pytest.mark.parametrize(
    ("state", "expected"),
    [(0, "synchronised"), (UNKEPT_CLOCK_US - 1, "synchronised"), (UNKEPT_CLOCK_US, "not synchronised")],
)
def test_the_kernel_says_whether_its_clock_is_kept(tmp_path: Path, state: int, expected: str) -> None:
    assert host_settings({}, root=tmp_path, clock=lambda: state)["time synchronisation"]["value"] == expected


def test_a_kernel_that_refuses_to_say_is_no_pass(tmp_path: Path) -> None:
    fact = host_settings({}, root=tmp_path, clock=lambda: -1)["time synchronisation"]
    assert fact == {"value": None, "missing": "the kernel denies adjtimex here"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("<system/>", "/topo.xml"),
        ("", "/topo.xml: missing or empty"),
        (None, "/topo.xml: missing or empty"),
    ],
)
def test_the_topology_file_of_nccl_has_to_be_there(tmp_path: Path, text: str | None, value: str) -> None:
    root = tree(tmp_path, {**HEALTHY, **({} if text is None else {"topo.xml": text})})
    settings = host_settings({"NCCL_TOPO_FILE": "/topo.xml"}, root=root, clock=lambda: 0)
    assert settings["NCCL topology file"]["value"] == value
    warned = statuses(judged(settings, [gpu(0)])).get("NCCL topology file")
    assert warned == (None if text else "WARN")


def test_gpus_outside_their_fabric_and_hot_ones_are_warned_of(tmp_path: Path) -> None:
    gpus = [gpu(0), gpu(1, static={"fabric_state": "in progress"}), gpu(2, state={"temp_gpu_c": 88})]
    settings = host_settings({}, gpus, root=tree(tmp_path, HEALTHY), clock=lambda: 0)
    warned = {item.name: item.outcome.measured for item in judged(settings, gpus) if not item.is_required}
    assert warned["NVLink fabric"] == "completed, in progress"
    assert warned["temperature before work"] == "30 to 88 °C, a spread of 58 K; a GPU reached its maximum"


def test_what_a_driver_does_not_report_is_missing(tmp_path: Path) -> None:
    bare = {**gpu(0), "static": {}, "state": {}}
    settings = host_settings({}, [gpu(0), bare], root=tmp_path, clock=lambda: 0)
    assert (
        settings["temperature before work"]["missing"] == "not every driver reports temperature and maximum"
    )
    assert host_settings({}, [bare], root=tmp_path)["NVLink fabric"]["value"] is None


def test_runs_of_older_versions_are_not_judged() -> None:
    items = ask([judge_host_settings], FleetFacts(hosts={"a": {"accelerators": {"devices": []}}, "b": {}}))
    assert {item.outcome.status for item in items} == {"SKIP"}


def test_every_expectation_has_its_words_and_its_source() -> None:
    rows = packaged_rows(TABLE)
    assert len({row["name"] for row in rows}) == len(rows)
    for row in rows:
        told = [row[key] for key in ("expected", "source", "next_step")]
        assert all(told) if row["good"] else row["read"] == "root" or not any(told), row["name"]


def test_this_host_can_be_read() -> None:
    settings = host_settings({})
    assert len(settings) == len(packaged_rows(TABLE))
    assert all((fact["value"] is None) == (fact["missing"] is not None) for fact in settings.values())
