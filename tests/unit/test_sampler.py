"""The sampler's loop on a clock that only moves when somebody sleeps or reads: no drift, exact ends."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpuproof.devices.base import DeviceProcess, Readout
from gpuproof.monitor.kernel_log import KernelLog
from gpuproof.monitor.sampler import Clock, ReadPorts, Sampler, SamplingPlan, Schedule
from gpuproof.records.ports import PortReading, PortTotals
from gpuproof.records.readings import (
    Counters,
    DeviceIdentity,
    DeviceProcesses,
    DeviceReading,
    DevicesAppeared,
    DriverEvent,
    Lane,
    Mark,
    PhysicalIndex,
    Recording,
    RecordingEnd,
    Sample,
    UnavailableMetrics,
)

R = TypeVar("R")


@dataclass
class World:
    """Fake time, one fake device, the recorder and the listener of one test."""

    now_s: float = 1000.0
    read_s: Callable[[float], float] = lambda _now: 0.001
    """How long a reading takes, as a function of when it begins."""
    watts: float = 100.0
    lost_after_s: float = float("inf")
    waiting_marks: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    stop_at_s: float = float("inf")
    room: int = 10**6
    records: list[Any] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    exit_code: int | None = None
    bad_marks: int = 0
    was_ready: bool = False
    late: list[tuple[float, tuple[DeviceIdentity, ...]]] = field(default_factory=list)
    """When a driver answers, and whose it is."""
    absent: dict[str, str] = field(default_factory=lambda: {"amd": "no driver"})
    events_unavailable: dict[PhysicalIndex, str] = field(default_factory=dict)
    identities: tuple[DeviceIdentity, ...] = (
        DeviceIdentity(
            physical_index=0,
            vendor="fake",
            vendor_index=0,
            framework_index=0,
            uuid="u",
            pci_bus_id=None,
            name="Scripted",
        ),
    )

    # the clock
    def clock(self) -> Clock:
        return Clock(monotonic=lambda: self.now_s, wall=lambda: self.now_s + 5e8, process_cpu=lambda: 0.25)

    # the devices
    def _readout(self, **values: float) -> dict[PhysicalIndex, Readout]:
        if self.now_s >= self.lost_after_s:
            reasons = dict.fromkeys(values, "the GPU is lost")
            return {PhysicalIndex(0): Readout(reading=DeviceReading(values={}), unavailable=reasons)}
        return {
            PhysicalIndex(0): Readout(reading=DeviceReading(values=values), unavailable={"fan_rpm": "none"})
        }

    def read(self, lane: Lane) -> Mapping[PhysicalIndex, Readout]:
        given = self._readout(power_w=self.watts, **({"pcie_gen": 4.0} if lane == "slow" else {}))
        self.now_s += self.read_s(self.now_s)
        return given

    def counters(self) -> Mapping[PhysicalIndex, Readout]:
        return self._readout(energy_j=self.watts * self.now_s)

    def processes(self) -> Mapping[PhysicalIndex, tuple[DeviceProcess, ...] | str]:
        users = (DeviceProcess(pid=42, mem_used_bytes=7, kind="compute"),) if self.now_s < 1001.5 else ()
        return {PhysicalIndex(0): users}

    def poll_events(self) -> tuple[DriverEvent, ...]:
        return ()

    def arrivals(self) -> tuple[DeviceIdentity, ...]:
        return self.late.pop(0)[1] if self.late and self.late[0][0] <= self.now_s else ()

    # the recorder
    def append(self, record: Any) -> None:
        if len(self.records) >= self.room:
            raise OSError(28, "No space left on device")
        self.records.append(record)

    def append_last_words(self, record: Any) -> None:
        self.records.append(record)

    def close(self) -> None:
        pass

    # the listener
    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        arrivals = [at for at, _ in self.waiting_marks if at > self.now_s]
        self.now_s = min([self.now_s + seconds, *arrivals, max(self.stop_at_s, self.now_s)])

    def stop_reason(self) -> str | None:
        return "SIGTERM" if self.now_s >= self.stop_at_s else None

    def marks(self, now_s: float) -> list[tuple[float, dict[str, Any]]]:
        due = [mark for mark in self.waiting_marks if mark[0] <= now_s]
        self.waiting_marks = [mark for mark in self.waiting_marks if mark[0] > now_s]
        return due

    def ready(self) -> None:
        self.was_ready = True

    def run(
        self, ports: ReadPorts | None = None, *, kernel_log: Path = Path(os.devnull), **plan: Any
    ) -> RecordingEnd:
        return Sampler(
            self,
            host=FakeHost(),
            recorder=self,
            listener=self,
            plan=SamplingPlan(**plan),
            clock=self.clock(),
            ports=ports,
            kernel_log=KernelLog(kernel_log),
        ).run()

    def of(self, kind: type[R]) -> list[R]:
        return [record for record in self.records if isinstance(record, kind)]


class FakeHost:
    def read(self) -> dict[str, float]:
        return {"cpu_percent": 12.5}

    def facts(self) -> dict[str, Any]:
        return {"os": "none"}


def test_readings_stay_on_absolute_deadlines_however_long_each_takes() -> None:
    world = World(read_s=lambda now: 0.037)
    end = world.run(interval_s=0.1, slow_interval_s=1.0, duration_s=100.0)
    times = [sample.monotonic_s for sample in world.of(Sample)]
    assert times[:-1] == pytest.approx([1000.0 + 0.1 * i for i in range(1000)], abs=1e-9)
    assert times[-1] == pytest.approx(1100.0)
    assert (end.samples, end.missed_ticks, end.reason) == (1001, 0, "duration")
    assert end.max_jitter_s == pytest.approx(0.0, abs=1e-9)
    assert end.own_cpu_s == 0.25


def test_a_device_that_cannot_be_heard_is_recorded_with_the_reason() -> None:
    world = World(events_unavailable={PhysicalIndex(0): "not offered", PhysicalIndex(1): "of another"})
    world.run(interval_s=0.25, slow_interval_s=1.0, duration_s=1.0)
    (unavailable,) = world.of(UnavailableMetrics)
    assert (unavailable.physical_index, unavailable.reasons["driver_events"]) == (0, "not offered")


@dataclass
class CountingPort:
    """A port that sends all the time, and counts its first error after a minute."""

    began_s: float

    def read(self, now_s: float, at: str) -> PortTotals:
        counters = {"symbol_error": int(now_s - self.began_s >= 60), "port_xmit_data": int(now_s)}
        port = PortReading(name="mlx5_0:1", medium="rdma", counters=counters)
        return PortTotals(monotonic_s=now_s, at=at, ports=(port,), missing={})


def test_ports_are_recorded_at_both_ends_and_when_they_counted_more_than_traffic() -> None:
    world = World()
    world.run(CountingPort(world.now_s).read, interval_s=0.5, slow_interval_s=1.0, duration_s=300.0)
    totals = world.of(PortTotals)
    assert [one.at for one in totals] == ["start", "change", "end"]
    assert [one.ports[0].counters["symbol_error"] for one in totals] == [0, 1, 1]
    assert 60 <= totals[1].monotonic_s - totals[0].monotonic_s <= 70


def test_lines_of_the_kernels_log_are_recorded_with_the_slow_lane_and_a_log_that_is_not_there(
    tmp_path: Path,
) -> None:
    line = "NVRM: GPU at no address: GPU has fallen off the bus."
    log = tmp_path / "kmsg"
    log.touch()
    world = World(read_s=lambda _now: 0.001 * bool(log.write_text(f"{line}\n")))
    world.run(kernel_log=log, interval_s=0.25, slow_interval_s=1.0, duration_s=2.0)
    (event,) = world.of(DriverEvent)
    assert (event.physical_index, event.event, event.message) == (None, "kernel", line)
    world = World()
    world.run(kernel_log=tmp_path / "none", slow_interval_s=1.0, duration_s=2.0)
    (unread,) = world.of(DriverEvent)
    assert unread.message.endswith("none: No such file or directory")


def test_the_slow_lane_comes_at_its_own_interval_and_carries_the_host() -> None:
    world = World()
    world.run(interval_s=0.25, slow_interval_s=1.0, duration_s=3.0)
    lanes = "".join(sample.lane[0] for sample in world.of(Sample))
    assert lanes == "sfffsfffsfff" + "s"
    assert all(("cpu_percent" in s.host) == (s.lane == "slow") for s in world.of(Sample))
    assert all(("pcie_gen" in s.devices["0"].values) == (s.lane == "slow") for s in world.of(Sample))


def test_the_host_may_be_read_more_often_than_the_slow_lane() -> None:
    world = World()
    world.run(interval_s=0.25, slow_interval_s=1.0, host_interval_s=0.5, duration_s=2.0)
    samples = world.of(Sample)
    assert "".join(sample.lane[0] for sample in samples) == "sfffsfff" + "s"
    assert ["cpu_percent" in sample.host for sample in samples] == [True, False] * 4 + [True]


def test_ticks_that_a_hanging_reading_swallowed_are_counted_and_not_made_up_for() -> None:
    world = World(read_s=lambda now: 2.05 if now == 1001.0 else 0.0)
    end = world.run(interval_s=0.5, slow_interval_s=10.0, duration_s=5.0)
    times = [round(sample.monotonic_s - 1000.0, 3) for sample in world.of(Sample)]
    assert times == [0.0, 0.5, 1.0, 3.05, 3.5, 4.0, 4.5, 5.0]
    assert end.missed_ticks == 3  # 1.5, 2.0 and 2.5; the one of 3.0 was only late
    assert end.max_jitter_s == pytest.approx(0.05)


def test_counters_at_both_ends_give_exact_deltas_at_any_rate() -> None:
    for interval_s in (0.01, 7.0):
        world = World()
        world.run(interval_s=interval_s, slow_interval_s=60.0, duration_s=10.0)
        start, end = world.of(Counters)
        assert (start.at, end.at) == ("start", "end")
        joules = end.devices["0"]["energy_j"] - start.devices["0"]["energy_j"]
        assert joules == pytest.approx(100.0 * (end.monotonic_s - start.monotonic_s))


def test_the_loop_sleeps_and_never_spins() -> None:
    world = World()
    world.run(interval_s=0.5, slow_interval_s=1.0, duration_s=60.0)
    assert len(world.waits) < 2 * 120
    assert min(world.waits) > 1e-6


def test_a_long_interval_still_looks_after_its_parent_every_second() -> None:
    world = World(stop_at_s=1003.5)
    end = world.run(interval_s=60.0, slow_interval_s=60.0)
    assert end.reason == "SIGTERM"
    assert end.monotonic_s == pytest.approx(1003.5, abs=0.01)
    assert max(world.waits) <= 1.0


def test_marks_are_written_when_they_arrive_and_shift_no_reading() -> None:
    world = World(
        waiting_marks=[(1000.3, {"phase": "train"}), (1000.7, {"epoch": 1})], bad_marks=2, exit_code=3
    )
    end = world.run(interval_s=0.5, slow_interval_s=1.0, duration_s=1.0)
    assert [(m.monotonic_s, m.metadata) for m in world.of(Mark)] == [
        (1000.3, {"phase": "train"}),
        (1000.7, {"epoch": 1}),
    ]
    assert [s.monotonic_s for s in world.of(Sample)] == pytest.approx([1000.0, 1000.5, 1001.0])
    assert (end.bad_marks, end.exit_code) == (2, 3)


def test_why_a_metric_is_missing_is_written_once_and_again_when_it_changes() -> None:
    world = World(lost_after_s=1002.3)
    world.run(interval_s=0.5, slow_interval_s=1.0, duration_s=5.0)
    first, lost, slow_too = world.of(UnavailableMetrics)
    assert first.reasons == {"fan_rpm": "none"}
    assert (lost.monotonic_s, slow_too.monotonic_s) == pytest.approx((1002.5, 1003.0))
    assert lost.reasons == {"fan_rpm": "none", "power_w": "the GPU is lost"}
    assert slow_too.reasons == {**lost.reasons, "pcie_gen": "the GPU is lost"}
    assert all("power_w" not in s.devices["0"].values for s in world.of(Sample) if s.monotonic_s > 1002.4)


def test_processes_are_written_only_when_they_change_and_without_names() -> None:
    world = World()
    world.run(interval_s=0.5, slow_interval_s=0.5, duration_s=4.0)
    assert [p.devices["0"] for p in world.of(DeviceProcesses)] == [
        {"processes": [{"pid": 42, "mem_used_bytes": 7, "kind": "compute"}]},
        {"processes": []},
    ]


def test_the_first_line_tells_what_is_read_and_no_command_unless_asked() -> None:
    world = World()
    world.run(duration_s=0.5)
    (head,) = world.of(Recording)
    assert world.records[0] is head
    assert world.was_ready
    assert head.command is None
    assert head.host_facts == {"os": "none", "vendors_absent": {"amd": "no driver"}}
    kept = World()
    kept.run(duration_s=0.5, command=("train", "--secret"))
    assert kept.of(Recording)[0].command == ("train", "--secret")


def test_a_full_disk_ends_the_recording_with_a_last_line_that_says_so() -> None:
    world = World(room=10)
    with pytest.raises(OSError, match="No space left"):
        world.run(interval_s=0.1, duration_s=60.0)
    last = world.records[-1]
    assert isinstance(last, RecordingEnd)
    assert last.reason == "cannot write: No space left on device"


@pytest.mark.parametrize(
    ("now_s", "deadline_s", "missed"),
    [(0.0, 1.0, 0), (0.9, 1.0, 0), (1.0, 1.0, 0), (1.9, 1.0, 0), (2.0, 2.0, 1), (7.3, 7.0, 6)],
)
def test_a_tick_is_missed_when_the_next_one_is_due(now_s: float, deadline_s: float, missed: int) -> None:
    schedule = Schedule(start_s=0.0, interval_s=1.0)
    schedule.advance(now_s)
    assert (schedule.deadline_s, schedule.missed_ticks) == (deadline_s, missed)


def test_deadlines_do_not_drift_over_a_day() -> None:
    schedule = Schedule(start_s=12345.678, interval_s=0.1)
    for _ in range(864_000):
        assert schedule.is_due(schedule.deadline_s)
        schedule.advance(schedule.deadline_s)
    assert schedule.missed_ticks == 0
    assert schedule.deadline_s == pytest.approx(12345.678 + 86400.0, abs=1e-6)


def test_dithered_ticks_lie_one_in_each_interval_and_do_not_drift() -> None:
    schedule = Schedule(start_s=0.0, interval_s=0.1, dither=random.Random(5))
    ticks = []
    for _ in range(50_000):
        ticks.append(schedule.deadline_s)
        schedule.advance(schedule.deadline_s)
    assert schedule.missed_ticks == 0
    assert ticks[0] == 0.0
    places = [tick / 0.1 - place for place, tick in enumerate(ticks)]
    assert min(places) >= -1e-6
    assert max(places) < 1 + 1e-6
    tenths = [sum(tenth / 10 <= place < (tenth + 1) / 10 for place in places[1:]) for tenth in range(10)]
    assert all(abs(count - 5000) < 300 for count in tenths)  # sd 67


def test_a_dithered_recording_says_its_seed_and_keeps_lanes_and_ends() -> None:
    world = World()
    end = world.run(interval_s=0.25, slow_interval_s=1.0, duration_s=30.0, dither_seed=9)
    samples = world.of(Sample)
    assert world.of(Recording)[0].dither_seed == 9
    assert (end.samples, end.missed_ticks) == (121, 0)
    assert "".join(sample.lane[0] for sample in samples) == "sfff" * 30 + "s"
    times = [sample.monotonic_s - 1000.0 for sample in samples]
    assert [int(time / 0.25 + 1e-6) for time in times] == list(range(121))
    assert len({round(time % 0.25, 3) for time in times}) > 50
    again = World()
    again.run(interval_s=0.25, slow_interval_s=1.0, duration_s=30.0, dither_seed=9)
    assert [sample.monotonic_s for sample in again.of(Sample)] == [sample.monotonic_s for sample in samples]


def test_a_signal_in_step_with_the_ticks_is_met_at_all_points_of_its_course() -> None:
    """A sawtooth of one second, read five times in it: its mean is a half wherever it begins."""
    for begin in (0.0, 0.13, 0.5):
        world = World(read_s=lambda _now: 0.0)
        world.run(interval_s=0.2, slow_interval_s=1.0, duration_s=600.0, dither_seed=1)
        course = [(sample.monotonic_s + begin) % 1.0 for sample in world.of(Sample)]
        assert sum(course) / len(course) == pytest.approx(0.5, abs=0.015)


def test_ticks_that_a_hanging_reading_swallowed_are_missed_with_dither_too() -> None:
    schedule = Schedule(start_s=0.0, interval_s=1.0, dither=random.Random(1))
    schedule.advance(0.0)
    schedule.advance(3.2)  # the reading of the second interval ended in the fourth
    assert schedule.missed_ticks == 1
    assert 3.0 <= schedule.deadline_s < 4.0


def test_devices_that_answer_late_are_written_with_their_totals() -> None:
    world = World()
    world.late = [(1001.0, world.identities)]
    world.run(interval_s=0.5, duration_s=3.0)
    (arrival,) = world.of(DevicesAppeared)
    assert arrival.devices == world.identities
    assert [record.at for record in world.of(Counters)] == ["start", "appeared", "end"]
    kinds = [type(record) for record in world.records]
    assert kinds[kinds.index(DevicesAppeared) + 2] is Sample
