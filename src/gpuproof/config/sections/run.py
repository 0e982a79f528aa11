"""`run`: names, places and how often."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpuproof.config.sections.base import CommitHash, ConfigSection, FileName, Seconds, Text


class RunSection(ConfigSection):
    """Names, places and how often."""

    experiment_name: FileName = Field(
        default="benchmark", description="The folder of this run under save_dir."
    )
    run_id: FileName | None = Field(
        default=None, description="The run's own folder; null makes one from the time."
    )
    save_dir: Text = Field(default="./results", description="The folder of all results.")
    repeats: int = Field(
        default=1, ge=1, le=1000, description="Fresh launches; three or more give an interval."
    )
    capture_env: bool = Field(
        default=True, description="Record host, devices, versions and NCCL's variables."
    )
    commit_hash: CommitHash | None = Field(default="auto", description="The commit measured; auto asks git.")
    notes: Annotated[str, Field(max_length=10_000)] | None = Field(
        default=None, description="Anything to remember about this run."
    )
    time_limit_s: Seconds | None = Field(
        default=None, description="Seconds that one launch may take in all; null sets no limit."
    )
    start: Literal["auto", "exec", "fork"] = Field(
        default="auto",
        description="How launches start: exec is a fresh process each; fork copies one that has torch "
        "imported (one rank only, no interval between launches); auto is fork where a sweep or a search "
        "launches each point once, else exec.",
    )
    order_seed: int = Field(
        default=0, ge=0, lt=2**32, description="Seed of the order in which a sweep launches its points."
    )
