"""`command` and `cases`: a command of the user's (kind: command), and how the cases of a matrix are run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import JsonValue

from gpuproof.records.work.options import Bytes, Limits, Options, Seconds, Text

Word = Annotated[str, Limits(max_length=32_768)] | int | float | bool
Variable = Annotated[str, Limits(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandConfig(Options):
    """A command that is run beside the monitor; fields in braces are filled from matrix and cases.fields."""

    argv: Annotated[tuple[Word, ...], Limits(max_length=10_000, strict=False)] = ()
    """The program and its arguments, each a word of its own; no shell reads it. `command: [python, train.py]`
    is short for it. {output_dir} is a folder of each launch's own, {python} the Python that runs gpuproof."""
    cwd: Text | None = None
    """The folder in which it runs; null is the one in which gpuproof was started."""
    env: dict[Variable, str | int | float | bool | None] = field(default_factory=dict)
    """Variables beside those that there are. null is for secrets: it must be set where the command runs, and
    its value is kept nowhere."""
    collect: Annotated[tuple[Text, ...], Limits(max_length=100, strict=False)] = ()
    """Patterns of files to keep with the launch, from {output_dir} or else from cwd."""
    metrics: Text | None = None
    """The file of its own figures (JSON, JSON Lines or CSV), in {output_dir} or else in cwd."""
    time_limit_s: Seconds | None = None
    """Seconds after which the command is ended (what it wrote is kept); null sets no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CasesConfig(Options):
    """How the cases of a matrix are run and compared."""

    name: Annotated[str, Limits(max_length=1000)] | None = None
    """The name of a case from its fields, such as {model}_{optimizer}; null lists them all."""
    fields: dict[str, JsonValue] = field(default_factory=dict)
    """Fields of the command's template that are the same in every case."""
    only: Annotated[tuple[Text, ...], Limits(max_length=1000, strict=False)] = ()
    """Run only the cases for which all of these hold: optimizer=adam,sgd."""
    parallel: Annotated[int, Limits(ge=1, le=1024)] = 1
    """Cases that run at the same time, one on each GPU and then several on each."""
    wait_for_memory: Bytes | None = None
    """Free memory that a GPU must have before a case begins on it, as 18G; null asks for none."""
    memory_wait_timeout_s: Seconds = 300.0
    """How long a case waits for a GPU, and for its memory."""
    stop_on_failure: bool = False
    """Begin no other case once one has failed."""
    keep_going: bool = False
    """Begin the other cases even where the first three failed, all for the same reason."""
    seed: Text = "seed"
    """The field that distinguishes repetitions of one configuration, such as seed."""
    metric: Text | None = None
    """Metric that compares configurations; null takes the accuracy, else throughput, else the time taken."""
    better: Literal["higher", "lower"] | None = None
    """Which way is better; null is lower for times and losses, higher for all else."""
