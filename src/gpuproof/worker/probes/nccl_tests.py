"""NVIDIA's nccl-tests: run if installed; their output table is parsed.

The table has the documented format (https://github.com/NVIDIA/nccl-tests): lines starting with `#` are
comments. A row contains size, count, type, redop, root, and then time (µs), algbw, busbw (GB/s) and #wrong,
once for out of place and once for in place. N/A means not applicable or not checked. A table is incomplete if
its footer is missing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from gpuproof.accelerators.choose import accelerator_of
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.work.probe import NcclTestsSpec, ProbeReading
from gpuproof.worker.rank.bench import Bench

QUANTITY = "bus bandwidth"
OUTPUT = "nccl-tests.txt"
NOT_GIVEN = "N/A"
FOOTER = re.compile(r"#\s*Avg bus bandwidth\s*:")
SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """One half of a row: out of place, or in place."""

    time_s: float
    bus_bytes_per_s: float
    num_wrong: int | None
    """Number of wrong values; None if the program did not check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One row of the table, for one size."""

    size_bytes: int
    dtype: str
    out_of_place: Half | None
    """Out-of-place half; None if the operation has no such form."""
    in_place: Half | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTable:
    """Output printed by the program."""

    rows: tuple[TableRow, ...]
    is_complete: bool
    not_understood: tuple[str, ...]
    """Lines that are neither comments nor rows."""


def read_table(text: str) -> NcclTable:
    """Parse nccl-tests output; anything that cannot be parsed is reported, never guessed."""
    rows, strange, ended = [], [], False
    for line in text.splitlines():
        if line.startswith("#"):
            ended = ended or FOOTER.match(line) is not None
        elif line.strip():
            row = _row(line.split())
            if row is None:
                strange.append(line.strip())
            else:
                rows.append(row)
    return NcclTable(rows=tuple(rows), is_complete=ended, not_understood=tuple(strange))


def _row(words: Sequence[str]) -> TableRow | None:
    if len(words) != 13:
        return None
    try:
        return TableRow(
            size_bytes=int(words[0]),
            dtype=words[2],
            out_of_place=_half(words[5:9]),
            in_place=_half(words[9:13]),
        )
    except ValueError:
        return None


def _half(words: Sequence[str]) -> Half | None:
    time, _, bus, wrong = words
    if NOT_GIVEN in (time, bus):
        return None
    return Half(
        time_s=float(time) / 1e6,
        bus_bytes_per_s=float(bus) * 1e9,
        num_wrong=None if wrong == NOT_GIVEN else round(float(wrong)),  # older versions print 0e+00
    )


def run_nccl_tests(spec: NcclTestsSpec, bench: Bench) -> Iterator[ProbeReading]:
    """Yield the bus bandwidth and the number of wrong values for each size.

    Raises:
        EnvironmentUnfitError: the program failed, ran too long, or did not print a table.
    """
    program, accelerator = shutil.which(spec.program), accelerator_of(bench.device)
    reason = None
    if program is None:
        reason = f"{spec.program} is not on PATH"
    elif "nccl" not in accelerator.collectives:
        reason = (
            f"{spec.program} needs devices that communicate over NCCL, but the rank uses the "
            f"{accelerator.title}"
        )
    if program is None or reason is not None:
        yield ProbeReading(
            rank=bench.identity.rank,
            quantity=QUANTITY,
            unit="B/s",
            missing=reason,
            is_inapplicable=True,
            is_of_host=True,
        )
        return
    named = bench.case.placement.devices
    command = command_of(program, spec, num_devices=accelerator.count() if named is None else len(named))
    table = read_table(_output_of(command, spec, bench))
    if not table.rows:
        printed = " | ".join(table.not_understood)[:SHOWN_CHARACTERS]
        raise EnvironmentUnfitError(
            f"{spec.program} printed no table row: {printed}",
            next_step=f"Read {OUTPUT} next to the records; run {' '.join(command)} by hand",
        )
    yield from values_of(table, spec, rank=bench.identity.rank)


def command_of(program: str, spec: NcclTestsSpec, *, num_devices: int) -> list[str]:
    """Return the command line."""
    options = {
        "-b": spec.min_bytes,
        "-e": spec.max_bytes,
        "-f": spec.factor,
        "-n": spec.iterations,
        "-w": spec.warmup_iterations,
        "-g": num_devices,
    }
    return [program, *(word for letter, value in options.items() for word in (letter, str(value)))]


def _output_of(command: Sequence[str], spec: NcclTestsSpec, bench: Bench) -> str:
    path = Path(bench.recorder.path).with_name(OUTPUT)
    until_s = monotonic() + spec.time_limit_s
    with path.open("wb") as file:
        running = subprocess.Popen(list(command), stdout=file, stderr=subprocess.STDOUT)
        while True:
            try:
                status = running.wait(timeout=1.0)
                break
            except subprocess.TimeoutExpired:
                bench.beat()
                if monotonic() > until_s:
                    running.kill()
                    running.wait()
                    raise EnvironmentUnfitError(
                        f"{spec.program} did not finish within {spec.time_limit_s:g} s",
                        next_step="Raise probe.nccl_tests.time_limit_s, or lower max_bytes",
                    ) from None
    text = path.read_text("utf-8", errors="replace")
    if status:
        last = (text.strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvironmentUnfitError(
            f"{spec.program} exited with status {status}: {last[:SHOWN_CHARACTERS]}",
            next_step=f"Read {OUTPUT} next to the records; run {' '.join(command)} by hand",
        )
    return text


def values_of(table: NcclTable, spec: NcclTestsSpec, *, rank: int) -> Iterator[ProbeReading]:
    """Yield the table's values; a bandwidth printed as 0 is too small to display, and not a value."""
    operation = spec.program.removesuffix("_perf")
    notes = [] if table.is_complete else ["the table has no footer: the program was cut off"]
    notes += [f"not understood: {line[:SHOWN_CHARACTERS]}" for line in table.not_understood]
    for row in table.rows:
        for place, half in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
            if half is None:
                continue
            labels = {
                "operation": operation,
                "size_bytes": row.size_bytes,
                "dtype": row.dtype,
                "place": place,
                "tool": "nccl-tests",
            }
            bandwidth = half.bus_bytes_per_s
            figure = partial(ProbeReading, rank=rank, labels=labels, evidence=tuple(notes), is_of_host=True)
            yield figure(
                quantity=QUANTITY,
                unit="B/s",
                value=bandwidth or None,
                missing=None if bandwidth else "printed as 0.00 GB/s: below the resolution of the table",
            )
            yield figure(
                quantity="wrong values",
                unit="1",
                value=None if half.num_wrong is None else float(half.num_wrong),
                missing="the program did not check" if half.num_wrong is None else None,
            )
