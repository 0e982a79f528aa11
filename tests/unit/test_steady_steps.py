"""Steps that are taken apart are steps in a row: none in which ranks wait for each other's hosts to begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuproof.accelerators.base import DeviceCommand
from gpuproof.worker.breakdown import communication as overlap
from gpuproof.worker.breakdown.bursts import queued_burst, steady_burst
from gpuproof.worker.engine.host_clock import HostClock


class NumberedClock(HostClock):
    """Gives the n-th step n seconds."""

    def end(self) -> None:
        """Take the number of the step for its time."""
        self._times_s.append(float(self._begun))


def test_a_burst_has_its_steps_without_the_one_in_which_hosts_begin() -> None:
    seen: list[str] = []
    ranks = SimpleNamespace(barrier=lambda: seen.append("barrier"))
    prepared: Any = SimpleNamespace(clock=NumberedClock(), ranks=ranks)
    assert steady_burst(prepared, lambda: seen.append("step"), num_steps=3) == (2.0, 3.0, 4.0)
    assert seen == ["barrier", *["step"] * 4]


def test_a_burst_behind_a_busy_device_is_queued_whole_once_all_ranks_are_there() -> None:
    seen: list[str] = []
    held_s: list[float] = []
    busy: Any = SimpleNamespace(hold=held_s.append)
    ranks = SimpleNamespace(barrier=lambda: seen.append("barrier"))
    prepared: Any = SimpleNamespace(clock=NumberedClock(), ranks=ranks)
    found = queued_burst(prepared, lambda: seen.append("step"), busy, num_steps=3, host_s=0.5)
    assert found == (2.0, 3.0, 4.0)
    assert seen == ["barrier", *["step"] * 4]
    assert held_s == [2.0]


def test_steps_are_queued_behind_a_busy_device_before_collectives_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def look(run: Any, *_of: object) -> list[DeviceCommand]:
        seen.append("look")
        run()
        return []

    def queue(*_of: object) -> Any:
        return SimpleNamespace(hold=lambda _host_s: seen.append("hold"))

    monkeypatch.setattr(overlap, "commands_during", look)
    monkeypatch.setattr(overlap, "BusyQueue", queue)
    monkeypatch.setattr(overlap, "reason_unseen", lambda *_of: None)
    monkeypatch.setattr(overlap, "accelerator_of", lambda _device: SimpleNamespace(asynchronous=True))
    monkeypatch.setattr("torch.distributed.all_reduce", lambda _tensor: seen.append("meet"))
    written: list[Any] = []
    prepared: Any = SimpleNamespace(
        device="cpu",
        clock=None,
        identity=SimpleNamespace(rank=0),
        ranks=SimpleNamespace(barrier=lambda: seen.append("barrier"), agree=int),
        step=lambda: seen.append("step"),
    )
    recorder: Any = SimpleNamespace(write=written.append)
    overlap.measure_overlap(prepared, recorder)
    assert [found.num_steps for found in written] == [overlap.NUM_STEPS]
    assert seen == ["barrier", "step", "barrier", "look", "hold", "meet", *["step"] * overlap.NUM_STEPS]
