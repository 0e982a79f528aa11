"""How often is `gpuproof run quick` VALID on this machine, and what makes the other runs SUSPECT?

A quiet machine must reach VALID: a tool that warns about every run is useless. Each run is a fresh command.
The output is the percentage of VALID runs with its exact 95 % interval, how wide the intervals of their rates
are, and, for the other runs, the first cause on their page and all their causes.

    python benchmarks/quick_verdicts.py                                 20 runs of the quick recipe as it is
    python benchmarks/quick_verdicts.py -- --distributed.device=simgpu  arguments for `gpuproof run` follow
    `--`
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import beta

from gpuproof.base.units import share
from gpuproof.records.codec import from_json
from gpuproof.records.result import Result
from gpuproof.verdict.doubts.base import likely_first
from pairing import machine_line
from timed_commands import gpuproof


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one run reported about itself."""

    validity: str
    codes: tuple[str, ...]
    """Codes of its warnings, the likeliest cause first."""
    relative_half_width: float | None
    """Relative half-width of the interval of the run's first result; None if there is none."""
    headline: str


def main() -> None:
    """Run the recipe repeatedly, and count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="3 runs")
    parser.add_argument("--recipe", default="quick")
    parser.add_argument("words", nargs="*", help="for `gpuproof run`, after --")
    options = parser.parse_args()
    print(machine_line())
    verdicts = []
    for number in range(3 if options.quick else options.runs):
        verdicts.append(one_run(options.recipe, options.words))
        print(
            f"run {number + 1:2}: {verdicts[-1].validity:9} {verdicts[-1].headline} {told(verdicts[-1])}",
            flush=True,
        )
    print("\n".join(lines(verdicts)))


def one_run(recipe: str, words: Sequence[str]) -> Verdict:
    """Run the recipe in a separate folder.

    Raises:
        SystemExit: the run produced no result; its standard error is the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = gpuproof("run", recipe, "--run.run_id=v", *words)
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        found = list(Path(folder).glob("results/*/v/result.json"))
        if not found:
            sys.exit(f"{' '.join(command)} exited with status {ended.returncode}:\n{ended.stderr}")
        result = from_json(Result, json.loads(found[0].read_text(encoding="utf-8")), place=str(found[0]))
    return Verdict(
        validity=result.validity or result.verdict,
        codes=tuple(dict.fromkeys(doubt.code for doubt in likely_first(result.doubts))),
        relative_half_width=half_width(result),
        headline=result.headline,
    )


def half_width(result: Result) -> float | None:
    """Return half the width of the first result's interval, relative to the result."""
    first = result.measures[0] if result.measures else None
    if first is None or first.interval is None or not first.value:
        return None
    return (first.interval.high - first.interval.low) / 2 / first.value


def told(verdict: Verdict) -> str:
    """Return the width and the warnings of a run."""
    width = verdict.relative_half_width
    return f"{'' if width is None else f'±{share(width)} '}{', '.join(verdict.codes)}"


def lines(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Summarise all runs."""
    valid = [verdict for verdict in verdicts if verdict.validity == "VALID"]
    low, high = clopper_pearson(len(valid), len(verdicts))
    yield f"VALID: {len(valid)} of {len(verdicts)} runs, {share(low)} to {share(high)} at 95 %"
    widths = sorted(found.relative_half_width for found in valid if found.relative_half_width is not None)
    if widths:
        middle = widths[len(widths) // 2]
        yield f"their intervals: ±{share(widths[0])} to ±{share(widths[-1])}, median ±{share(middle)}"
    others = [verdict for verdict in verdicts if verdict.validity != "VALID" and verdict.codes]
    if others:
        yield f"first cause in the other runs: {_counted(found.codes[0] for found in others)}"
        yield f"all causes: {_counted(code for found in others for code in found.codes)}"


def _counted(codes: Iterator[str]) -> str:
    return ", ".join(f"{code} in {times}" for code, times in Counter(codes).most_common())


def clopper_pearson(hits: int, trials: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a proportion.

    >>> clopper_pearson(20, 20)[0] > 0.83, clopper_pearson(0, 20)[1] < 0.17
    (True, True)
    """
    low = 0.0 if not hits else float(beta.ppf(0.025, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(0.975, hits + 1, trials - hits))
    return low, high


if __name__ == "__main__":
    main()
