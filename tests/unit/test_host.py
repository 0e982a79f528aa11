"""Host readings: from a written /proc, with figures worked out by hand, and psutil's against /proc's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuproof.monitor.host import (
    CpuTimes,
    HostReader,
    HostTotals,
    cpu_shares,
    default_source,
    read_proc,
    read_psutil,
)
from waiting import eventually

STAT = """cpu  300 0 100 1600 0 0 0 0 0 0
cpu0 200 10 50 700 20 5 5 10 99 0
cpu1 100 0 50 900 0 0 0 0 0 0
intr 1
"""
MEMINFO = "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n"
DISKSTATS = """   7 0 loop0 1 0 1000 0 1 0 1000 0 0 0 0
 253 0 dm-0 1 0 1000 0 1 0 1000 0 0 0 0
"""
NET = """Inter-|   Receive      |  Transmit
 face |bytes packets |bytes
    lo: 999 1 0 0 0 0 0 0 999 1 0 0 0 0 0 0
  eth0:1000 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0
  ib0: 200 1 0 0 0 0 0 0 4 1 0 0 0 0 0 0
docker0: 77 1 0 0 0 0 0 0 77 1 0 0 0 0 0 0
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    for name, text in {"stat": STAT, "meminfo": MEMINFO, "diskstats": DISKSTATS, "net/dev": NET}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_proc_is_read_field_by_field(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    totals = read_proc(proc)
    # cpu0: user 200 + nice 10 + system 50 + irq 5 + softirq 5 + steal 10 = 280 ticks; guest is inside user
    assert totals.cpu == CpuTimes(busy_s=(2.8, 1.5), iowait_s=(0.2, 0.0), total_s=(10.0, 10.5))
    assert totals.values == {
        "mem_used_bytes": 600 * 1024,
        "mem_available_bytes": 400 * 1024,
        "swap_used_bytes": 30 * 1024,
        "disk_read_bytes": 0,
        "disk_write_bytes": 0,
        "net_rx_bytes": 1200,
        "net_tx_bytes": 34,
    }


def test_the_busiest_core_shows_a_loader_that_runs_on_one() -> None:
    idle = CpuTimes(busy_s=(0.0,) * 8, iowait_s=(0.0,) * 8, total_s=(0.0,) * 8)
    one = CpuTimes(busy_s=(0.0,) * 7 + (2.0,), iowait_s=(0.0,) * 8, total_s=(2.0,) * 8)
    shares = cpu_shares(idle, one)
    assert shares["cpu_percent"] == pytest.approx(12.5)
    assert shares["cpu_max_core_percent"] == pytest.approx(100.0)


def test_a_share_over_too_short_a_time_is_absent_and_not_zero() -> None:
    seconds = iter([0.0, 0.01, 1.0])

    def source() -> HostTotals:
        now = next(seconds)
        return HostTotals(cpu=CpuTimes(busy_s=(now / 2,), iowait_s=(0.0,), total_s=(now,)), values={})

    reader = HostReader(source)
    assert "cpu_percent" not in reader.read()
    assert reader.read()["cpu_percent"] == pytest.approx(50.0)  # over the whole second, not the last 0.99


COUNTERS = ("net_rx_bytes", "net_tx_bytes", "disk_read_bytes", "disk_write_bytes")
STEP_BACK_S = 0.1
"""By which the kernel's processor times go back at most, and more than a tick of them."""


def test_psutil_and_proc_tell_the_same_of_this_machine() -> None:
    """However long passes between two readings, what counts up lies between one before and one after."""
    by_proc, by_psutil = read_proc(), read_psutil()
    assert len(by_psutil.cpu.total_s) == len(by_proc.cpu.total_s)
    assert by_psutil.values.keys() == by_proc.values.keys()

    def agree() -> bool:
        before, found, after = read_proc(), read_psutil(), read_proc()
        free = [each.values["mem_available_bytes"] for each in (before, found, after)]
        return (
            _lies_between(before.cpu.total_s, found.cpu.total_s, after.cpu.total_s, slack=STEP_BACK_S)
            and _lies_between(before.cpu.busy_s, found.cpu.busy_s, after.cpu.busy_s, slack=STEP_BACK_S)
            and _lies_between(*([each.values[name] for name in COUNTERS] for each in (before, found, after)))
            and max(free) <= 1.1 * min(free)
        )

    # Others take and give back memory, a link may go, and the kernel corrects its times of a processor.
    eventually("readings by psutil that agree with /proc's", agree)


def _lies_between(
    before: Sequence[float], found: Sequence[float], after: Sequence[float], *, slack: float = 0.0
) -> bool:
    triples = zip(before, found, after, strict=True)
    return all(low - slack <= value <= high + slack for low, value, high in triples)


def test_without_psutil_the_source_is_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psutil", None)
    assert default_source() == ("/proc", read_proc)


def test_facts_name_no_user_and_no_command() -> None:
    facts = HostReader().facts()
    assert set(facts) == {
        "os",
        "kernel",
        "python",
        "cpu_model",
        "cpus_logical",
        "cpus_allowed",
        "host_source",
    }
