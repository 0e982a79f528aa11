"""`run`: names, places and how often."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpuproof.config.sections.base import CommitHash, ConfigSection, FileName
from gpuproof.records.work.options import Seconds, Text


class RunSection(ConfigSection):
    """Names, places and how often."""

    experiment_name: FileName = "benchmark"
    """The folder of this run under save_dir."""
    run_id: FileName | None = None
    """The run's own folder; null makes one from the time."""
    save_dir: Text = "./results"
    """The folder of all results."""
    repeats: int = Field(default=1, ge=1, le=1000)
    """Launches, which repeat the whole measurement in fresh processes; three or more give an interval."""
    capture_env: bool = True
    """Record host, devices, versions and NCCL's variables."""
    commit_hash: CommitHash | None = "auto"
    """The commit measured; auto asks git."""
    summary_csv: Literal["launches", "epochs"] = "launches"
    """Rows of summary.csv: a launch each, in a sweep a point; or an epoch each, as in metrics_epoch.jsonl."""
    notes: Annotated[str, Field(max_length=10_000)] | None = None
    """A comment, kept with the run."""
    time_limit_s: Seconds | None = None
    """Seconds that one launch may take in all; null sets no limit."""
    start: Literal["auto", "exec", "fork"] = "auto"
    """How launches start: exec is a fresh process each; fork copies one that has torch imported (one rank
    only, no interval between launches); auto is fork where a sweep or a search launches each point once, else
    exec."""
    order_seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the order in which a sweep launches its points."""
