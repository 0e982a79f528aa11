"""`run`: names, places and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpuproof.records.work.options import CommitHash, FileName, Limits, Options, Seconds, Seed, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection(Options):
    """Names, places and how often."""

    experiment_name: FileName = "benchmark"
    """The folder of this run under save_dir."""
    run_id: FileName | None = None
    """The run's own folder; null makes one from the time."""
    save_dir: Text = "./results"
    """The folder of all results."""
    repeats: Annotated[int, Limits(ge=1, le=1000)] = 1
    """Launches, which repeat the whole measurement in fresh processes; three or more give an interval."""
    target_precision: Annotated[float, Limits(gt=0, lt=1)] | None = None
    """Of one recipe, where repeats are 5 or more: launch on until the 95% interval of its figure is ± this
    share of it or narrower; null stops at repeats."""
    target_time_s: Seconds = 60.0
    """With target_precision: launches may take so many seconds in all; none that would end later is begun."""
    capture_env: bool = True
    """Record host, devices, versions and NCCL's variables."""
    commit_hash: CommitHash | None = "auto"
    """The commit measured; auto asks git."""
    summary_csv: Literal["launches", "epochs"] = "launches"
    """Rows of summary.csv: a launch each, in a sweep a point; or an epoch each, as in metrics_epoch.jsonl."""
    notes: Annotated[str, Limits(max_length=10_000)] | None = None
    """A comment, kept with the run."""
    time_limit_s: Seconds | None = None
    """Seconds that one launch may take in all; null sets no limit."""
    start: Literal["auto", "exec", "fork"] = "auto"
    """How launches start: exec is a fresh process each; fork copies one that has torch imported (one rank
    only, no interval between launches); auto is fork where a sweep or a search launches each point once, else
    exec."""
    order_seed: Seed = 0
    """Seed of the order in which a sweep launches its points."""
