"""A window measured by precision, on two ranks: both stop after the same step, and the report says why."""

from __future__ import annotations

from gpuproof.records.run import Window
from gpuproof.worker.engine.stopping import EARLY_STEPS, REACHED, REASONS, rarest_seen_stall
from integration.conftest import Run
from running import MEASURED

BY_PRECISION = ("--benchmark.measure_by=precision", "--benchmark.min_steps=30")


def test_ranks_stop_together_and_for_one_reason(a_run: Run) -> None:
    """How long steps take is the machine's affair, and so is the reason; that all have the same is not."""
    wanted = ("--benchmark.target_precision=0.5", "--benchmark.measure_seconds=8", "--nproc=2")
    ended = a_run.run("faulty", *BY_PRECISION, *wanted, steps=1, step_s=0.02)
    assert ended.returncode in MEASURED, ended.stderr
    first, second = a_run.case().of(Window)
    assert first.stop_reason == second.stop_reason
    assert first.stop_reason in REASONS.values()
    assert first.num_steps == second.num_steps
    assert (first.requested_steps, first.requested_s) == (None, None)
    if first.stop_reason == REASONS[REACHED]:
        assert first.relative_half_width is not None
        assert first.relative_half_width <= 0.5
    assert (
        first.wall_s >= 4.0 or first.num_steps >= EARLY_STEPS
    )  # half the limit, or enough to exclude a drift
    assert first.rarest_seen_stall == rarest_seen_stall(first.num_steps)
    said = " ".join(ended.stdout.split())
    assert "would have gone undetected" in said
    assert first.stop_reason in said


def test_a_precision_that_is_not_reached_is_a_doubt(a_run: Run) -> None:
    wanted = ("--benchmark.target_precision=1e-9", "--benchmark.measure_seconds=0.5")
    ended = a_run.run("faulty", *BY_PRECISION, *wanted, steps=1, step_s=0.005)
    assert ended.returncode in MEASURED, ended.stderr
    (window,) = a_run.case().of(Window)
    assert window.stop_reason == "time limit"
    assert window.wall_s >= 0.5
    said = " ".join(ended.stdout.split())
    assert "the mean step is " in said
    if window.relative_half_width is not None and window.relative_half_width <= 0.5:
        assert "the mean step is known only to ±" in said
    assert "as requested: time limit" in said
