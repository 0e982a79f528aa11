"""What the CPUs did, read from a /proc that the test writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuproof.worker.host.host_load import LoadReading, load_between, read_load

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def write_proc(proc: Path, *, cpu: tuple[int, ...], waits_ns: tuple[int, ...]) -> Path:
    """Write /proc with the fields of the first line of `stat`, in seconds, and a thread for each wait."""
    tasks = proc / "self" / "task"
    ticks = " ".join(str(seconds * TICKS_PER_S) for seconds in cpu)
    tasks.mkdir(parents=True, exist_ok=True)
    (proc / "stat").write_text(f"cpu  {ticks}\ncpu0 1 2 3\nintr 5\n")
    for number, wait_ns in enumerate(waits_ns):
        (tasks / str(100 + number)).mkdir(exist_ok=True)
        (tasks / str(100 + number) / "schedstat").write_text(f"999 {wait_ns} 7\n")
    return proc


def test_busy_is_all_but_idle_and_waiting_for_disks(tmp_path: Path) -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice
    cpu = (1, 2, 4, 1000, 500, 8, 16, 32, 1, 2)
    reading = read_load(write_proc(tmp_path, cpu=cpu, waits_ns=(1_500_000_000, 500_000_000)))
    assert reading.busy_cpu_s == 1 + 2 + 4 + 8 + 16
    assert reading.steal_cpu_s == 32
    assert reading.run_queue_wait_s == 2.0
    assert reading.own_cpu_s > 0
    assert reading.missing is None


def test_a_load_is_the_difference_of_two_readings(tmp_path: Path) -> None:
    begin = read_load(write_proc(tmp_path, cpu=(10, 0, 5, 100, 0, 0, 0, 1), waits_ns=(10**9,)))
    end = read_load(write_proc(tmp_path, cpu=(14, 0, 7, 103, 0, 0, 1, 3), waits_ns=(3 * 10**9, 5 * 10**8)))
    load = load_between(begin, end)
    assert (load.busy_cpu_s, load.steal_cpu_s, load.run_queue_wait_s) == (7.0, 2.0, 2.5)
    assert load.num_cpus == os.cpu_count()
    assert load.own_cpu_s >= 0
    assert load.missing is None


def test_what_the_system_does_not_give_is_none_with_the_reason(tmp_path: Path) -> None:
    nothing = read_load(tmp_path)
    assert (nothing.busy_cpu_s, nothing.steal_cpu_s, nothing.run_queue_wait_s) == (None, None, None)
    assert nothing.missing is not None
    assert "No such file" in nothing.missing
    whole = read_load(write_proc(tmp_path, cpu=(1, 0, 0, 0, 0, 0, 0, 0), waits_ns=(0,)))
    load = load_between(nothing, whole)
    assert (load.busy_cpu_s, load.steal_cpu_s, load.run_queue_wait_s) == (None, None, None)
    assert load.missing == nothing.missing


def test_a_kernel_without_schedstat_still_gives_the_rest(tmp_path: Path) -> None:
    write_proc(tmp_path, cpu=(1, 0, 0, 0, 0, 0, 0, 2), waits_ns=(0,))
    (tmp_path / "self" / "task" / "100" / "schedstat").unlink()
    reading = read_load(tmp_path)
    assert (reading.busy_cpu_s, reading.steal_cpu_s, reading.run_queue_wait_s) == (1.0, 2.0, None)
    assert reading.missing is not None


def test_a_short_or_odd_first_line_is_a_reason_not_a_number(tmp_path: Path) -> None:
    for line in ("cpu 1 2", "cpu a b c d e f g h", ""):
        (tmp_path / "stat").write_text(line)
        reading = read_load(tmp_path)
        assert reading.missing is not None, line
        assert reading.steal_cpu_s is None


def test_threads_that_ended_make_the_wait_unknown_not_negative() -> None:
    def reading(wait_s: float) -> LoadReading:
        return LoadReading(
            monotonic_s=0.0,
            own_cpu_s=1.0,
            busy_cpu_s=5.0,
            steal_cpu_s=0.0,
            run_queue_wait_s=wait_s,
            missing=None,
        )

    load = load_between(reading(3.0), reading(1.0))
    assert load.run_queue_wait_s is None
    assert load.missing == "threads that had waited for a CPU exited in the window"
    assert load_between(reading(1.0), reading(3.0)).run_queue_wait_s == 2.0


def test_processes_that_have_ended_count_as_our_own_once() -> None:
    begin, times = read_load(), os.times()
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    end, after = read_load(), os.times()
    children_s = sum(after[2:4]) - sum(times[2:4])
    assert children_s > 0
    assert load_between(begin, end).own_cpu_s == pytest.approx(sum(after[:4]) - sum(times[:4]), abs=0.1)
