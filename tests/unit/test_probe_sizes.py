"""Matrices of probes are as wide as fits into the time, on the slowest rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuproof.worker.probes import fingerprint as fitting
from gpuproof.worker.probes.fingerprint import fitting_edge


class ADevice:
    """One that takes so many seconds at 256, and eight times as long at twice that; kernels load first."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch, *, others: int = 2**15) -> None:
        self.seconds, self.now_s, self.tried = seconds, 0.0, list[int]()
        self.bench: Any = SimpleNamespace(
            clock=SimpleNamespace(synchronize=lambda: None),
            ranks=SimpleNamespace(agree=lambda proposal: min(proposal, others)),
            beat=lambda: None,
        )
        monkeypatch.setattr(fitting, "monotonic", lambda: self.now_s)

    def attempt(self, edge: int) -> None:
        loading_s = 0.0 if edge in self.tried else 5.0
        self.tried.append(edge)
        self.now_s += loading_s + self.seconds * (edge / 256) ** 3


@pytest.mark.parametrize(
    ("seconds", "edge"),
    [(0.001, 2048), (0.00195, 2048), (0.00196, 1024), (0.01, 1024), (0.1, 512), (0.2, 256), (9.0, 256)],
)
def test_as_wide_as_fits(seconds: float, edge: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = ADevice(seconds, monkeypatch)
    assert fitting_edge(2048, 1.0, device.attempt, device.bench) == edge
    assert seconds * (edge / 256) ** 3 <= 1.0 or edge == 256
    assert max(device.tried) <= max(256, edge)  # what does not fit is not tried


def test_the_slowest_rank_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ADevice(0.001, monkeypatch, others=512)
    assert fitting_edge(2048, 1.0, device.attempt, device.bench) == 512


def test_without_a_limit_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ADevice(0.001, monkeypatch)
    assert fitting_edge(2048, None, device.attempt, device.bench) == 2048
    assert fitting_edge(64, 1.0, device.attempt, device.bench) == 64
    assert device.tried == []


def test_a_width_that_is_no_power_of_two_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    device = ADevice(0.0001, monkeypatch)
    assert fitting_edge(1000, 1.0, device.attempt, device.bench) == 1000
    assert sorted(set(device.tried)) == [256, 512]
