"""A trace of requests in Mooncake's form: JSON lines of when each came, how long it was, what it shared.

In: a file with a line a request: `{"timestamp": ms, "input_length": tokens, "output_length": tokens,
"hash_ids": [...]}`. Out: its requests in order of time. A hash is the name of a block of 512 tokens: prompts
that begin with the same hashes begin with the same text. Without timestamps a file is one of lengths.
https://github.com/kvcache-ai/Mooncake (FAST25-release/traces)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.base.outside import parse_json

BLOCK_TOKENS = 512
MOST_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    at_s: float | None
    """From the trace's begin; None where its line has no timestamp."""
    prompt_tokens: int
    new_tokens: int
    hash_ids: tuple[int, ...]


@lru_cache(maxsize=1)
def read_trace(path: str, *, max_s: float | None = None) -> tuple[TraceRow, ...]:
    """Read the requests of the first `max_s` seconds, or all of a file of lengths.

    Raises:
        EnvironmentUnfitError: the file cannot be read, has no request, or a line is none; where times are
            asked for (`max_s`), one of them has none.
    """
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise OSError(f"it is over {MOST_BYTES:,} bytes")
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        rows = [_row(line, number) for number, line in enumerate(lines, start=1) if line.strip()]
        if max_s is not None:
            rows = sorted((row for row in rows if _time_s(row) < max_s), key=_time_s)
        if not rows:
            raise ValueError("it has no request" + ("" if max_s is None else f" in its first {max_s:g} s"))
    except (OSError, ValueError) as error:
        raise EnvironmentUnfitError(
            f"the trace {path} cannot be used: {error}",
            place="serving.trace",
            next_step="Give a file of JSON lines with timestamp (ms), input_length and output_length, on the "
            "host that sends the requests",
        ) from None
    return tuple(rows)


def _time_s(row: TraceRow) -> float:
    if row.at_s is None:
        raise ValueError("a request has no timestamp, by which it is to be sent")
    return row.at_s


def _row(line: str, number: int) -> TraceRow:
    try:
        data = parse_json(line)
        at_ms = data.get("timestamp")
        row = TraceRow(
            at_s=None if at_ms is None else at_ms / 1000,
            prompt_tokens=int(data["input_length"]),
            new_tokens=int(data["output_length"]),
            hash_ids=tuple(int(name) for name in data.get("hash_ids") or ()),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"line {number} is no request ({type(error).__name__}: {error})") from None
    if row.prompt_tokens < 1 or row.new_tokens < 1 or (row.at_s is not None and not 0 <= row.at_s < 1e9):
        raise ValueError(f"line {number}: its lengths must be 1 or more, and its time 0 or more")
    return row
