"""What people see of ports: a recording's page, the live view and Prometheus, all from the same totals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import recordings as rec
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.live_text import event_lines
from gpuproof.observe.prometheus.families import families
from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.records.ports import PortReading, PortTotals


def totals(at: str, *, symbol_error: int, rx_dropped: int = 0) -> PortTotals:
    return PortTotals(
        monotonic_s=rec.MONOTONIC_S,
        at=at,
        ports=(
            PortReading(
                name="mlx5_0:1",
                medium="rdma",
                traits=("InfiniBand",),
                state="ACTIVE",
                rate="400 Gb/sec (4X NDR)",
                counters={"symbol_error": symbol_error, "port_xmit_data": 9_000},
            ),
            PortReading(
                name="eth0",
                medium="ethernet",
                counters={"rx_dropped": rx_dropped},
                unread={"pfc_pauses": "not in sysfs"},
            ),
        ),
        missing={"pcie": "no GPU reports errors"},
    )


def records(*, errors: int) -> list[Any]:
    return [
        rec.header([rec.identity()]),
        totals("start", symbol_error=100),
        rec.sample(0, {0: {"power_w": 300.0}}),
        totals("change", symbol_error=100 + errors // 2, rx_dropped=3),
        rec.sample(1, {0: {"power_w": 300.0}}),
        totals("end", symbol_error=100 + errors, rx_dropped=3),
    ]


def live(errors: int) -> LiveState:
    state = LiveState()
    state.apply(records(errors=errors))
    return state


@pytest.mark.parametrize(("errors", "verdict"), [(12, "port mlx5_0:1"), (0, "nothing unusual")])
def test_the_page_of_a_recording_has_each_port_with_what_it_counted(
    tmp_path: Path, errors: int, verdict: str
) -> None:
    page = recording_page(recording_result(rec.loaded(tmp_path, records(errors=errors))))
    assert page.verdict is not None
    assert verdict in str(page.verdict.reason)
    text = " ".join(rec.text_of(page, width=160).split())
    assert ("symbol_error +12" in text) == bool(errors)
    assert "InfiniBand, ACTIVE, 400 Gb/sec (4X NDR): " in text
    assert "pcie no port: no GPU reports errors" in text
    assert "rx_dropped +3; pfc_pauses not known: not in sysfs" in text


def test_the_live_view_names_a_port_that_counts_errors_since_it_began() -> None:
    assert "mlx5_0:1  symbol_error +12" in event_lines({"": live(12)}).plain
    assert event_lines({"": live(0)}).plain == ""
    assert "node1  mlx5_0:1" in event_lines({"node1": live(12), "node2": live(0)}).plain


def test_prometheus_gets_the_totals_of_every_port_but_for_traffic() -> None:
    (family,) = [one for one in families(live(12), fresh=True) if one.name == "gpuproof_port_events"]
    served = {(s.labels["port"], s.labels["counter"]): s.value for s in family.samples}
    assert served == {("mlx5_0:1", "symbol_error"): 112, ("eth0", "rx_dropped"): 3}
    assert {s.labels["host"] for s in family.samples} == {rec.header([rec.identity()]).host}
