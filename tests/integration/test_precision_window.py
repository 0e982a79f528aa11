"""A window measured by precision, on two ranks: both stop after the same step, and the report says why."""

from __future__ import annotations

from gpuproof.records.run import Window
from gpuproof.worker.engine.stopping import rarest_seen_stall
from integration.conftest import Run

BY_PRECISION = ("--benchmark.measure_by=precision", "--benchmark.min_steps=30")


def test_ranks_stop_together_when_the_mean_step_is_known(a_run: Run) -> None:
    wanted = ("--benchmark.target_precision=0.5", "--benchmark.measure_seconds=16", "--nproc=2")
    # Steps of 50 ms: what a busy machine adds to one is little beside it, so that the halves agree.
    ended = a_run.run("faulty", *BY_PRECISION, *wanted, steps=1, step_s=0.05)
    assert ended.returncode == 0, ended.stderr
    first, second = a_run.case().of(Window)
    assert (first.stop_reason, second.stop_reason) == ("precision reached", "precision reached")
    assert first.num_steps == second.num_steps >= 30
    assert (first.requested_steps, first.requested_s) == (None, None)
    assert first.relative_half_width is not None
    assert first.relative_half_width <= 0.5
    assert first.wall_s >= 8.0  # half the limit
    assert first.rarest_seen_stall == rarest_seen_stall(first.num_steps)
    assert "would not have been seen" in " ".join(ended.stdout.split())
    assert "; precision reached" in " ".join(ended.stdout.split())


def test_a_precision_that_is_not_reached_is_a_doubt(a_run: Run) -> None:
    wanted = ("--benchmark.target_precision=1e-9", "--benchmark.measure_seconds=0.5")
    ended = a_run.run("faulty", *BY_PRECISION, *wanted, steps=1, step_s=0.005)
    assert ended.returncode == 0, ended.stderr
    (window,) = a_run.case().of(Window)
    assert window.stop_reason == "time limit"
    assert window.wall_s >= 0.5
    said = " ".join(ended.stdout.split())
    assert "the mean step is known to ±" in said
    assert "as asked: time limit" in said
