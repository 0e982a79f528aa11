"""The live view's tables at every width: the state is never cut, and of many hosts trouble is first."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

import recordings as rec
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.observe.live_once import look, written
from gpuproof.observe.live_panes import device_detail, process_rows, process_table
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.live_table import device_table, history_charts, models
from gpuproof.observe.live_text import event_lines
from gpuproof.observe.stream import Records
from gpuproof.records.readings import DeviceProcesses, DriverEvent, Sample, UnavailableMetrics

WIDTHS = (80, 100, 140, 200)
FULL = {
    "util_gpu_percent": 100.0,
    "mem_used_bytes": 79.5 * rec.GIB,
    "power_w": 1000.0,
    "temp_gpu_c": 88.0,
    "temp_mem_c": 95.0,
    "clock_sm_mhz": 1980.0,
    "sm_active_percent": 97.5,
    "pcie_gen": 5.0,
    "pcie_width": 8.0,
    "fan_percent": 42.0,
    "ecc_corrected_count": 3.0,
}


def shown(renderable: Any, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(renderable)
    return out.getvalue()


def state_of(*records: Any, gpus: int = 1) -> LiveState:
    state = LiveState()
    state.apply([rec.header([rec.identity(index) for index in range(gpus)]), *records])
    return state


def slow(at_s: float, devices: dict[int, dict[str, float]]) -> Sample:
    fast = rec.sample(at_s, devices)
    return Sample(
        monotonic_s=fast.monotonic_s, unix_s=fast.unix_s, lane="slow", devices=fast.devices, host=fast.host
    )


def xid(code: int, *, gpu: int = 0, at_s: float = 1.0) -> DriverEvent:
    return DriverEvent(
        monotonic_s=rec.MONOTONIC_S + at_s, physical_index=gpu, event="xid", code=code, message=f"XID {code}"
    )


def told(at_s: float, *processes: dict[str, Any]) -> DeviceProcesses:
    return DeviceProcesses(monotonic_s=rec.MONOTONIC_S + at_s, devices={"0": {"processes": list(processes)}})


@pytest.mark.parametrize("width", WIDTHS)
def test_at_every_width_the_state_says_heat_first_and_the_row_fits(width: int) -> None:
    held = ("power_cap", "sync_boost", "thermal_software")
    state = state_of(rec.sample(0, {0: FULL}, reasons={0: held}))
    table = shown(device_table({"": state}, width=width), width)
    assert "▲ software thermal slowdown" in table
    assert all(len(line) <= width for line in table.splitlines())
    assert len(table.splitlines()) == 2
    for value in ("100 %", "88 °C", "1,000 W", "79.5/80 GiB"):
        assert value in table
    assert ("1,980 MHz" in table) == (width >= 100)
    assert ("Fake GPU 80" in table) == (width >= 140)
    assert ("42.0 %" in table) == ("97.5 %" in table) == (width >= 200)


def test_problems_of_link_and_memory_have_a_column_where_there_are_any() -> None:
    identity = rec.identity(static={"pcie_width_max": 16, "power_limit_default_w": 700.0})
    healthy, troubled = LiveState(), LiveState()
    healthy.apply([rec.header([identity]), rec.sample(0, {0: {**FULL, "pcie_width": 16.0}})])
    wrong = {**FULL, "ecc_uncorrected_count": 2.0, "remapped_rows_pending": 1.0}
    troubled.apply([rec.header([identity]), rec.sample(0, {0: wrong})])
    assert "problems" not in shown(device_table({"": healthy}, width=140), 140)
    table = shown(device_table({"": troubled}, width=160), 160)
    assert "ECC errors 2, remap pending" in table
    narrow = LiveState()
    narrow.apply([rec.header([identity]), rec.sample(0, {0: FULL})])
    assert "PCIe ×8 of 16" in shown(device_table({"": narrow}, width=140), 140)
    assert "1,000 W  of 700 W" in shown(device_table({"": healthy}, width=140), 140)


def test_the_history_takes_the_height_that_is_left() -> None:
    state = state_of(*(rec.sample(t, {0: {"util_gpu_percent": 10.0 * t}}) for t in range(8)), gpus=2)
    drawn = shown(history_charts({"": state}, width=60, height=12), 60).splitlines()
    assert drawn[0].startswith(" GPU 0 busy")
    assert any(line.startswith(" GPU 1 busy") for line in drawn)
    assert len(drawn) <= 12
    assert "█" in "".join(drawn)
    assert not shown(history_charts({"": state}, width=60, height=4), 60).strip()
    assert not shown(history_charts({"a": state, "b": state}, width=60, height=40), 60).strip()


@pytest.mark.parametrize("width", WIDTHS)
def test_memory_of_a_large_gpu_is_not_cut(width: int) -> None:
    state, static = LiveState(), {"mem_total_bytes": 288 * rec.GIB}
    sample = rec.sample(0, {0: {**FULL, "mem_used_bytes": 205.8 * rec.GIB}})
    state.apply([rec.header([rec.identity(static=static)]), sample])
    assert "205.8/288 GiB" in shown(device_table({"": state}, width=width), width)


@pytest.mark.parametrize("width", WIDTHS)
def test_at_every_width_a_lost_gpu_says_so_with_its_xid(width: int) -> None:
    gone = UnavailableMetrics(
        monotonic_s=rec.MONOTONIC_S + 1,
        physical_index=0,
        reasons=dict.fromkeys(("power_w", "temp_gpu_c", "util_gpu_percent"), "the GPU is lost"),
    )
    state = state_of(rec.sample(0, {0: FULL}), xid(79), xid(79), gone, rec.sample(1, {}))
    assert "✗ the GPU is lost · xid 79 ×2" in shown(device_table({"": state}, width=width), width)


def test_names_of_gpus_are_in_view_at_any_width() -> None:
    devices = [rec.identity(i) for i in (0, 1, 2)] + [rec.identity(3, name="Other"), rec.identity(4)]
    state = LiveState()
    state.apply([rec.header(devices)])
    assert shown(models({"": state}), 80).strip() == "GPU 0–2,4 Fake GPU 80   GPU 3 Other"
    assert shown(models({"a": state, "b": state}), 80).strip() == "8 × Fake GPU 80   2 × Other"


def test_of_many_hosts_those_in_trouble_come_first() -> None:
    def at(reasons: tuple[str, ...]) -> LiveState:
        return state_of(rec.sample(0, {0: FULL}, reasons={0: reasons}))

    lost = state_of(rec.sample(0, {0: FULL}), rec.sample(1, {}))
    states = {"fine": at(()), "capped": at(("power_cap",)), "hot": at(("thermal_hardware",)), "lost": lost}
    for width in WIDTHS:
        lines = shown(device_table(states, width=width), width).splitlines()[1:]
        assert [line.split()[0] for line in lines] == ["lost", "hot", "capped", "fine"]
        assert all(len(line) <= width for line in lines)


def test_large_every_reading_is_there() -> None:
    later = {
        **FULL,
        "pcie_tx_bytes": 4.0 * rec.GIB,
        "energy_j": 600.0,
        "throttle_time_thermal_software_s": 7.0,
    }
    state = state_of(
        slow(0, {0: {**FULL, "pcie_tx_bytes": 0.0, "energy_j": 0.0}}), slow(2, {0: later}), xid(31)
    )
    for width in (80, 200):
        text = shown(device_detail(state.devices[0], width=width), width)
        for now in ("5.0 × 8", "2.00 GiB/s", "95 °C", "97.5 %", "42.0 %", "ECC corrected", "600 J", "7.00 s"):
            assert now in text
        assert "xid 31" in text
        assert all(len(line) <= width for line in text.splitlines())


PYTHON = {"mem_used_bytes": 100, "kind": "compute", "user": "ada", "command": "python train.py"}


def test_processes_have_shares_of_processor_time_and_none_once_they_rest() -> None:
    state = state_of(
        slow(0, {0: FULL}),
        told(0, {**PYTHON, "pid": 1, "cpu_s": 10.0, "started_ticks": 5}),
        slow(2, {0: FULL}),
        told(2, {**PYTHON, "pid": 1, "cpu_s": 13.0, "started_ticks": 5}, {**PYTHON, "pid": 2, "cpu_s": 50.0}),
    )

    def shares() -> list[float | None]:
        return [row.number("cpu_percent") for row in process_rows({"": state}, order="GPU")]

    assert shares() == [150.0, None]  # of the second there is one reading alone
    state.apply([slow(4, {0: FULL})])
    assert shares() == [150.0, None]
    state.apply([slow(6, {0: FULL})])  # nothing was told at 4: nothing had changed since 2
    assert shares() == [0.0, None]
    state.apply([slow(8, {0: FULL}), told(8, {**PYTHON, "pid": 1, "cpu_s": 0.5, "started_ticks": 9})])
    assert shares() == [None]  # the same number, another process


def test_processes_are_sorted_and_filtered() -> None:
    state = state_of(
        told(
            0,
            {**PYTHON, "pid": 1, "cpu_percent": 5.0},
            {**PYTHON, "pid": 2, "mem_used_bytes": 900, "user": "bob", "slurm_job": "4711"},
            {"pid": 3, "mem_used_bytes": None, "kind": "graphics"},
        )
    )

    def pids(**how: Any) -> list[int]:
        return [row.facts["pid"] for row in process_rows({"": state}, **how)]

    assert pids(order="GPU memory") == [2, 1, 3]
    assert pids(order="CPU") == [1, 2, 3]
    assert pids(order="user") == [3, 1, 2]
    assert pids(order="GPU", containing="TRAIN") == [1, 2]
    assert pids(order="GPU", containing="4711") == [2]
    for width in (80, 200):
        text = shown(process_table({"": state}, width=width), width)
        assert all(len(line) <= width for line in text.splitlines())
        assert "python train.py" in text
        assert ("4711" in text) == (width == 200)


def test_what_another_machine_says_cannot_drive_the_terminal() -> None:
    nasty = "\x1b[2J\x07bad\nname"
    state = state_of(rec.sample(0, {0: FULL}), told(0, {**PYTHON, "pid": 1, "command": nasty, "user": nasty}))
    state.events.append(
        DriverEvent(monotonic_s=rec.MONOTONIC_S, physical_index=0, event="xid", code=1, message=nasty)
    )
    host = {nasty: state, "b": state}
    text = "".join(shown(part, 120) for part in (
        process_table(host, width=120), event_lines(host), device_table(host, width=120)
    ))  # fmt: skip
    assert "\x1b" not in text
    assert "\x07" not in text


def records(*given: Any) -> Records:
    yield from given


def refused() -> Records:
    yield None
    raise EnvironmentUnfitError("cannot be reached", place="node2: connect")


def test_one_look_at_two_hosts_shows_the_one_and_says_why_not_the_other() -> None:
    head = rec.header([rec.identity(0)])
    sources = {
        "node1": records(head, slow(0, {0: FULL}), slow(2, {0: FULL})),
        "node2": refused(),
    }
    states, failures = look(sources)
    text = written(states, failures, width=80, colour=False)
    assert "88 °C" in text
    assert "✗ node2: node2: connect: cannot be reached" in text
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
