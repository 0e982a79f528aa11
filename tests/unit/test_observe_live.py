"""The live view, through a terminal that textual simulates, and the state that it draws."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from textual.pilot import Pilot

import recordings as rec
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.observe.live import LiveView
from gpuproof.observe.live_panes import process_table
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.live_table import device_table
from gpuproof.observe.live_text import event_lines
from gpuproof.observe.stream import batches, followed, piped, sampled, sampler_command
from gpuproof.records.journal import encode
from gpuproof.records.readings import DeviceProcesses, DriverEvent, Sample, UnavailableMetrics
from waiting import PATIENCE_S, PAUSE_S, eventually


def busy(t: float, *, watts: float = 300.0, reasons: tuple[str, ...] = ()) -> Sample:
    values = {
        "util_gpu_percent": 90.0,
        "mem_used_bytes": 40.0 * rec.GIB,
        "power_w": watts,
        "temp_gpu_c": 60.0,
    }
    host = {"cpu_percent": 50.0, "net_rx_bytes": 1000.0 * t}
    return rec.sample(t, {0: values, 1: values}, reasons={0: (), 1: reasons}, host=host)


def records() -> list[Any]:
    """Two GPUs: the second is throttled by heat; then it is lost, and an XID says so."""
    return [
        rec.header([rec.identity(0), rec.identity(1)]),
        rec.mark(0, phase="train", epoch=3),
        busy(0),
        busy(1, reasons=("thermal_software",)),
        DeviceProcesses(
            monotonic_s=rec.MONOTONIC_S + 1,
            devices={"0": {"processes": [{"pid": 4242, "mem_used_bytes": rec.GIB, "kind": "compute"}]}},
        ),
    ]


LOSS = [
    UnavailableMetrics(
        monotonic_s=rec.MONOTONIC_S + 2, physical_index=1, reasons={"power_w": "the device is lost"}
    ),
    DriverEvent(
        monotonic_s=rec.MONOTONIC_S + 2, physical_index=1, event="xid", code=79, message="fell off the bus"
    ),
    rec.sample(2, {0: {"power_w": 301.0}}, reasons={0: ()}),
]


def shown(renderable: Any) -> str:
    console = Console(width=160, file=open(os.devnull, "w", encoding="utf-8"), record=True)  # noqa: SIM115
    console.print(renderable)
    console.file.close()
    return console.export_text()


def test_a_lost_device_loses_its_values_and_not_its_history() -> None:
    state = LiveState()
    state.apply([*records(), *LOSS])
    alive, lost = state.devices[0], state.devices[1]
    assert (alive.values["power_w"], alive.answering) == (301.0, True)
    assert "util_gpu_percent" not in alive.values  # the last sample did not give it: an old value is no value
    assert "power_w" not in lost.values
    assert not lost.answering
    assert list(lost.history["power_w"]) == [300.0, 300.0, None]
    assert lost.processes is None
    assert state.host_rates == {"net_rx_bytes": 1000.0}
    assert (state.elapsed_s, state.samples, state.metadata) == (2.0, 3, {"phase": "train", "epoch": 3})


def test_the_rows_say_in_words_what_is_wrong() -> None:
    state = LiveState()
    state.apply(records())
    table = shown(device_table({"": state}, width=160))
    assert "● not throttled" in table
    assert "▲ software thermal slowdown" in table
    assert "40.0/80 GiB" in table
    state.apply(LOSS)
    assert "✗ the device is lost" in shown(device_table({"": state}, width=160))
    assert "GPU 1  xid 79: fell off the bus" in shown(event_lines({"": state}))
    assert "processes unknown on GPU 1" in shown(process_table({"": state}, width=160))


def test_a_lost_device_says_so_also_where_other_metrics_were_never_there() -> None:
    never = {"clock_mem_application_mhz": "no such fact", "pstate_level": "no such metric"}
    gone = dict.fromkeys(("power_w", "temp_gpu_c", "util_gpu_percent"), "the device is lost")
    state = LiveState()
    state.apply([rec.header([rec.identity(0, unavailable=never)]), rec.sample(0, {0: {"power_w": 300.0}})])
    lost = UnavailableMetrics(monotonic_s=rec.MONOTONIC_S + 1, physical_index=0, reasons=gone)
    state.apply([lost, rec.sample(1, {})])
    assert "✗ the device is lost" in shown(device_table({"": state}, width=160))


def test_what_was_not_told_is_not_called_fine() -> None:
    state = LiveState()
    state.apply([rec.header([rec.identity()]), rec.sample(0, {0: {"power_w": 1.0}})])
    table = shown(device_table({"": state}, width=160))
    assert "– unknown" in table
    assert "–/80 GiB" in table


def endless(first: list[Any], stop: threading.Event) -> Generator[Any, None, None]:
    yield from first
    while not stop.is_set():
        yield None
        time.sleep(0.02)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a key take as long as a busy machine needs; textual gives up after half a minute."""
    wait = partialmethod(Pilot._wait_for_screen, PATIENCE_S)
    monkeypatch.setattr(Pilot, "_wait_for_screen", wait)


async def until(pilot: Any, what: str, holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"waited in vain: {what}"
        await pilot.pause(PAUSE_S)


async def until_seen(pilot: Any, *words: str) -> None:
    """Wait until all of these are on the screen."""

    def are_there() -> bool:
        screen = pilot.app.export_screenshot().replace("&#160;", " ")
        return all(word in screen for word in words)

    await until(pilot, f"{words} on the screen", are_there)


@pytest.mark.usefixtures("patient")
def test_the_view_shows_goes_into_detail_and_quits() -> None:
    stop = threading.Event()

    async def use() -> None:
        view = LiveView({"": endless(records(), stop)})
        async with view.run_test(size=(150, 40)) as pilot:
            with contextlib.ExitStack() as ending:
                ending.callback(stop.set)  # a view that fails would wait for its reader
                await until(pilot, "two samples", lambda: view.states[""].samples == 2)
                await until_seen(
                    pilot, "node7", "epoch 3", "software thermal slowdown", "4242", "80 GiB", "CPU"
                )
                await pilot.press("slash")
                await until(pilot, "the filter", lambda: view.query_one("#filter").has_focus)
                await pilot.press(*"4243", "enter")
                await until_seen(pilot, "no process contains")
                await until(pilot, "the picture again", lambda: view.query_one("#overview").has_focus)
                await pilot.press("escape", "s", "t")
                await until_seen(pilot, "4242", "Processes by CPU")
                await pilot.press("1")
                await until(pilot, "one GPU", lambda: view.query_one("#detail").display)
                await until_seen(pilot, "GPU-0001")
                await pilot.press("9")
                await pilot.press("escape")
                await until(pilot, "all GPUs", lambda: view.query_one("#overview").display)
                await pilot.press("space")
                await pilot.press("space")
                await pilot.press("question_mark")
                await until(pilot, "help", lambda: view.screen.query("HelpPanel"))
                await pilot.press("question_mark")
                await until(pilot, "no help", lambda: not view.screen.query("HelpPanel"))
            await pilot.press("q")
        assert view.failure is None

    asyncio.run(use())


@pytest.mark.usefixtures("patient")
def test_without_a_gpu_the_view_shows_the_host() -> None:
    stop = threading.Event()
    stop.set()
    lines = [rec.header([]), rec.sample(0, {}, host={"cpu_percent": 12.5})]

    async def use() -> None:
        view = LiveView({"": endless(lines, stop)})
        async with view.run_test(size=(140, 30)) as pilot:
            await until(pilot, "a sample", lambda: view.states[""].samples == 1)
            await until_seen(pilot, "No GPU here", "12.5 %")
            await pilot.press("q")

    asyncio.run(use())


def test_a_sampler_that_cannot_start_ends_the_view_with_its_words() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('gpuproof: no such sampler')"]

    async def use() -> LiveView:
        view = LiveView({"": sampled(command)})
        async with view.run_test() as pilot:
            await until(pilot, "its failure", lambda: view.failure is not None)
        return view

    failure = asyncio.run(use()).failure
    assert isinstance(failure, EnvironmentUnfitError)
    assert failure.cause == "no such sampler"


def test_a_real_sampler_is_read_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPROOF_FAKE_DEVICES", "2")
    state = LiveState()
    stream = sampled(sampler_command(interval_s=0.05, devices="1", processes="details"))
    with closing(batches(stream)) as incoming:

        def has_come() -> bool:
            state.apply(next(incoming))
            # A sample is empty where the driver took too long to answer.
            return state.samples >= 2 and any("power_w" in each.values for each in state.devices.values())

        eventually("two samples, and power", has_come, pause=lambda: None)
    stream.close()
    assert list(state.devices) == [1]
    assert state.devices[1].values["power_w"] > 0


def test_a_growing_file_is_followed_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = [encode(record) + "\n" for record in [*records(), rec.end(2, samples=2)]]
    path.write_text("".join(lines[:3]) + lines[3][:20], encoding="utf-8")
    stream = followed(path, poll_s=0.01)
    state = LiveState()
    assert state.samples == 0
    while (record := next(stream)) is not None:
        state.apply([record])
    assert state.samples == 1  # the second sample is only half written
    with path.open("a", encoding="utf-8") as file:
        file.write(lines[3][20:] + "not a record\n" + "".join(lines[4:]))
    state.apply(record for record in stream if record is not None)
    assert state.samples == 2
    assert state.end is not None


def test_a_pipe_is_read_line_by_line() -> None:
    reading, writing = os.pipe()
    os.write(writing, "".join(encode(record) + "\n" for record in records()).encode())
    os.close(writing)
    state = LiveState()
    state.apply(record for record in piped(reading) if record is not None)
    os.close(reading)
    assert state.samples == 2
