"""How true are the load client's figures? Against a server of ours that answers at times it is told.

Runs the client of `kind: serving`, target endpoint, in this process, and the twin of an endpoint in another:
the first chunk after 20 ms, then one every 5 ms. A few launches at each of a ladder of rates, up and down in
turn. For each rate: requests answered a second, the error of the median time to first token (from the
schedule) and of the median gap between chunks, p99 lateness of issue, CPU time a request and peak memory of
the client. With `--ceiling` the highest rate instead at which p99 lateness stays below 0.2 ms, for answers of
one chunk and of 32 that come at once. Figures are good on a quiet machine, with two cores or more.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic

from gpuproof.records.work.serving import EndpointSpec, ServingSpec
from gpuproof.units import seconds
from gpuproof.worker.serving.answers import RequestTimes
from gpuproof.worker.serving.endpoint import EndpointLoad
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.loop import run_precisely
from gpuproof.worker.serving.prompts import Prompts
from gpuproof.worker.serving.twin import Told, twin
from pairing import machine_line

TOLD = Told(chunks=16, first_s=0.020, gap_s=0.005)
RATES_PER_S = (30, 100, 300, 1000, 3000)
QUICK_RATES_PER_S = (30, 300)
CEILING_RATES_PER_S = tuple(round(125 * 2 ** (step / 2)) for step in range(12))
LATE_S = 0.2e-3
WINDOW_S, QUICK_WINDOW_S, LAUNCHES = 10.0, 2.0, 3


@dataclass(frozen=True, slots=True)
class Window:
    """What one launch at a rate showed."""

    answered_per_s: float
    first_s: float
    gap_s: float | None
    late_s: float
    cpu_s: float
    """Of the client, a request."""


def main() -> None:
    """Run the ladder and print a line a rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rates, windows of 2 s")
    parser.add_argument("--ceiling", action="store_true", help="the highest rate that is issued in time")
    options = parser.parse_args()
    window_s = QUICK_WINDOW_S if options.quick else WINDOW_S
    print(machine_line())
    if options.ceiling:
        for chunks in (1, 32):
            print(ceiling_line(chunks, window_s=window_s))
        return
    rates = QUICK_RATES_PER_S if options.quick else RATES_PER_S
    windows: dict[int, list[Window]] = {rate: [] for rate in rates}
    for launch in range(LAUNCHES):
        for rate in rates if launch % 2 == 0 else reversed(rates):
            windows[rate].append(one_window(TOLD, rate, window_s=window_s, seed=launch))
    print("\n".join(lines_of(windows, TOLD)))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the client: {peak_mib:.0f} MiB")


def one_window(told: Told, rate_per_s: float, *, window_s: float, seed: int) -> Window:
    """Load a fresh twin at a rate; constant gaps, so that no burst of arrivals is in the error.

    Raises:
        SystemExit: a request failed, so that there is no truth to compare with.
    """
    with twin(told) as url:
        endpoint = EndpointSpec(url=url, model="twin", max_connections=4096)
        load = EndpointLoad(endpoint, Prompts(ServingSpec(new_tokens=told.chunks), seed))
        plan = TrafficPlan(
            begin_monotonic_s=monotonic() + 0.2,
            seed=seed,
            arrivals="constant",
            rate_per_s=rate_per_s,
            num_requests=round(rate_per_s * window_s),
        )
        before = resource.getrusage(resource.RUSAGE_SELF)
        rows = run_precisely(load.run(plan, lambda _: None))
        after = resource.getrusage(resource.RUSAGE_SELF)
    failures = {row.failure for row in rows if row.failure}
    if failures:
        raise SystemExit(f"requests failed: {failures}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return window_of(rows, cpu_s=cpu_s / len(rows))


def window_of(rows: Sequence[RequestTimes], *, cpu_s: float) -> Window:
    """Put the requests of a launch together."""
    gaps_s = [gap_s for row in rows for gap_s in row.gaps_s]
    late_s = sorted(row.issued_s - row.scheduled_s for row in rows)
    return Window(
        answered_per_s=len(rows) / max(row.done_s or 0.0 for row in rows),
        first_s=median((row.first_token_s or 0.0) - row.scheduled_s for row in rows),
        gap_s=median(gaps_s) if gaps_s else None,
        late_s=late_s[int(0.99 * len(late_s))],
        cpu_s=cpu_s,
    )


def lines_of(windows: dict[int, list[Window]], told: Told) -> Iterator[str]:
    """Yield a line for each rate: the median of its launches, errors as what was measured less the truth."""
    for rate, launches in windows.items():
        first_s = median(window.first_s for window in launches) - told.first_s
        gap_s = median(window.gap_s for window in launches if window.gap_s is not None) - told.gap_s
        late_s = median(window.late_s for window in launches)
        cpu_s = median(window.cpu_s for window in launches)
        yield (
            f"{rate:>5} requests/s: {median(window.answered_per_s for window in launches):.0f}/s answered; "
            f"first token {first_s * 1e3:+.2f} ms ({first_s / told.first_s:+.1%}), gap {gap_s * 1e3:+.3f} ms "
            f"({gap_s / told.gap_s:+.1%}), p99 lateness {seconds(late_s)}, CPU {seconds(cpu_s)} a request"
        )


def ceiling_line(chunks: int, *, window_s: float) -> str:
    """Climb until a rate is issued late; say the highest that was not."""
    highest: float | None = None
    for rate in CEILING_RATES_PER_S:
        late_s = one_window(Told(chunks=chunks), rate, window_s=window_s, seed=rate).late_s
        print(f"  {chunks} chunks, {rate} requests/s: p99 lateness {seconds(late_s)}", flush=True)
        if late_s > LATE_S:
            break
        highest = rate
    rates = "no rate" if highest is None else f"{highest:.0f} requests/s"
    return f"answers of {chunks} chunks: p99 lateness below {seconds(LATE_S)} up to {rates}"


if __name__ == "__main__":
    main()
