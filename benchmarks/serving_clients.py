"""How accurate are load clients, measured against a server with specified response times?

Runs the client of `kind: serving`, target endpoint, in this process. In another process, a twin endpoint
sends the first chunk after 20 ms, then one chunk every 5 ms. Runs a few launches at each of several rates,
ascending and descending alternately. For each rate, prints responses per second, the error of the median time
to first token (from the schedule) and of the median gap between chunks, p99 issue lateness, CPU time per
request and peak memory of the client. With `--ceiling`, it finds instead the highest rate at which p99
lateness stays below 0.2 ms, for responses of one chunk and of 32 chunks sent at once. Results are reliable on
a quiet machine with two cores or more.

With `--environments FOLDER`, the command `gpuproof run serving`, guidellm and aiperf are compared instead.
They run interleaved, each against a fresh server that records its actual write times (`told_server.py`,
`client_runs.py`). The error is what a client reports minus what the server did. Each peer is installed into
FOLDER once. Our time to first token starts at the scheduled time, theirs when they send, so ours includes all
lateness.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic

from client_runs import (
    NEW_TOKENS,
    PACKAGES,
    PROMPT_TOKENS,
    Ask,
    Client,
    Reported,
    our_client,
    peer_client,
    run_client,
)
from gpuproof.base.units import seconds
from gpuproof.records.work.serving import EndpointSpec, ServingSpec
from gpuproof.worker.serving.answers import RequestTimes
from gpuproof.worker.serving.clients import run_precisely
from gpuproof.worker.serving.endpoint import EndpointLoad
from gpuproof.worker.serving.generator import TrafficPlan
from gpuproof.worker.serving.prompts import Prompts
from gpuproof.worker.serving.twin import TwinAnswer, twin
from pairing import machine_line
from told_server import Truth, told_server

TOLD = TwinAnswer(chunks=NEW_TOKENS, first_s=0.020, gap_s=0.005)
RATES_PER_S = (30, 100, 300, 1000, 3000)
QUICK_RATES_PER_S = (30, 300)
CEILING_RATES_PER_S = tuple(round(125 * 2 ** (step / 2)) for step in range(12))
LATE_S = 0.2e-3
WINDOW_S, QUICK_WINDOW_S, LAUNCHES = 10.0, 2.0, 3
COMPARED_WINDOW_S, COMPARED_LAUNCHES = 5.0, 2
START_RATE_PER_S, START_WINDOW_S = 30, 1.0
"""Rate and window of the launch that measures a client's startup cost."""
MOST_ERROR, MOST_FIRST_ERROR_S = 0.05, 1e-3
"""Maximum error for a client's results to count as accurate; the issued rate must also be within it."""


@dataclass(frozen=True, slots=True)
class Window:
    """The results of one launch at a rate."""

    answered_per_s: float
    first_s: float
    gap_s: float | None
    late_s: float
    cpu_s: float
    """CPU time of the client, per request."""


def main() -> None:
    """Run all rates and print a line per rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rates, windows of 2 s")
    parser.add_argument("--ceiling", action="store_true", help="the highest rate that is issued on time")
    parser.add_argument("--environments", type=Path, help="compare with guidellm and aiperf, installed here")
    parser.add_argument("--rates", type=int, nargs="+", help="rates to compare, instead of all five")
    options = parser.parse_args()
    window_s = QUICK_WINDOW_S if options.quick else WINDOW_S
    print(machine_line())
    if options.ceiling:
        for chunks in (1, 32):
            print(ceiling_line(chunks, window_s=window_s))
        return
    if options.environments:
        compare(
            options.environments.resolve(),
            options.rates or (QUICK_RATES_PER_S if options.quick else RATES_PER_S),
            window_s=QUICK_WINDOW_S if options.quick else COMPARED_WINDOW_S,
            launches=1 if options.quick else COMPARED_LAUNCHES,
        )
        return
    rates = QUICK_RATES_PER_S if options.quick else RATES_PER_S
    windows: dict[int, list[Window]] = {rate: [] for rate in rates}
    for launch in range(LAUNCHES):
        for rate in rates if launch % 2 == 0 else reversed(rates):
            windows[rate].append(one_window(TOLD, rate, window_s=window_s, seed=launch))
    print("\n".join(lines_of(windows, TOLD)))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the client: {peak_mib:.0f} MiB")


def one_window(told: TwinAnswer, rate_per_s: float, *, window_s: float, seed: int) -> Window:
    """Load a fresh twin at a rate; constant gaps keep bursts of arrivals out of the error.

    Raises:
        SystemExit: a request failed, so there is no truth to compare with.
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
    """Combine the requests of a launch."""
    gaps_s = [gap_s for row in rows for gap_s in row.gaps_s]
    late_s = sorted(row.issued_s - row.scheduled_s for row in rows)
    return Window(
        answered_per_s=len(rows) / max(row.done_s or 0.0 for row in rows),
        first_s=median((row.first_token_s or 0.0) - row.scheduled_s for row in rows),
        gap_s=median(gaps_s) if gaps_s else None,
        late_s=late_s[int(0.99 * len(late_s))],
        cpu_s=cpu_s,
    )


def lines_of(windows: dict[int, list[Window]], told: TwinAnswer) -> Iterator[str]:
    """Yield a line for each rate: the median over launches, errors as measured minus true."""
    for rate, launches in windows.items():
        first_s = median(window.first_s for window in launches) - told.first_s
        gap_s = median(window.gap_s for window in launches if window.gap_s is not None) - told.gap_s
        late_s = median(window.late_s for window in launches)
        cpu_s = median(window.cpu_s for window in launches)
        yield (
            f"{rate:>5} requests/s: {median(window.answered_per_s for window in launches):.0f}/s "
            f"answered; first token {first_s * 1e3:+.2f} ms ({first_s / told.first_s:+.1%}), gap "
            f"{gap_s * 1e3:+.3f} ms ({gap_s / told.gap_s:+.1%}), p99 lateness {seconds(late_s)}, "
            f"CPU {seconds(cpu_s)} per request"
        )


def ceiling_line(chunks: int, *, window_s: float) -> str:
    """Increase the rate until requests are issued late; return the highest rate that was on time."""
    highest: float | None = None
    for rate in CEILING_RATES_PER_S:
        late_s = one_window(TwinAnswer(chunks=chunks), rate, window_s=window_s, seed=rate).late_s
        print(f"  {chunks} chunks, {rate} requests/s: p99 lateness {seconds(late_s)}", flush=True)
        if late_s > LATE_S:
            break
        highest = rate
    rates = "no rate" if highest is None else f"{highest:.0f} requests/s"
    return f"responses of {chunks} chunks: p99 lateness below {seconds(LATE_S)} up to {rates}"


@dataclass(frozen=True, slots=True)
class Compared:
    """One launch of a client: what it reports, and what the server did."""

    said: Reported
    truth: Truth

    @property
    def first_error_s(self) -> float:
        """Error of the median time to the first token."""
        return self.said.first_s - self.truth.first_s

    @property
    def gap_error(self) -> float:
        """Error of the median time between tokens, as a fraction."""
        return self.said.gap_s / self.truth.gap_s - 1

    def is_true(self, rate_per_s: int) -> bool:
        """Return whether the results are within the goal's errors, at the requested rate."""
        return (
            abs(self.first_error_s) <= min(MOST_FIRST_ERROR_S, MOST_ERROR * self.truth.first_s)
            and abs(self.gap_error) <= MOST_ERROR
            and self.truth.answered_per_s >= (1 - MOST_ERROR) * rate_per_s
        )


def compare(environments: Path, rates: Sequence[int], *, window_s: float, launches: int) -> None:
    """Run all clients at all rates, interleaved; print each, then the rate up to which it is accurate."""
    clients = {"gpuproof": our_client()}
    for name, package in PACKAGES.items():
        client = peer_client(name, environments)
        print(f"{package}: {'missing, ' + client if isinstance(client, str) else 'installed'}", flush=True)
        if not isinstance(client, str):
            clients[name] = client
    starts_s = {}
    for name, client in clients.items():
        start = one_launch(client, START_RATE_PER_S, window_s=START_WINDOW_S, seed=0)
        starts_s[name] = start if isinstance(start, str) else start.said.cpu_s
        print(
            f"{name}: {start if isinstance(start, str) else seconds(start.said.cpu_s) + ' of CPU to start'}"
        )
    results: dict[tuple[int, str], list[Compared | str]] = {}
    for launch in range(launches):
        order = [(rate, name) for rate in rates for name in clients]
        for rate, name in order if launch % 2 == 0 else reversed(order):
            result = one_launch(clients[name], rate, window_s=window_s, seed=launch)
            results.setdefault((rate, name), []).append(result)
            print(f"  {launch} {rate}/s {name}: {compared_line([result], starts_s[name])}", flush=True)
    print("\nmedians of the launches")
    for (rate, name), rows in sorted(results.items()):
        print(f"{rate:>5} requests/s {name:>8}: {compared_line(rows, starts_s[name])}")
    for name in clients:
        print(f"{name}: accurate up to {highest_true(results, name) or 'no'} requests/s")


def one_launch(client: Client, rate_per_s: int, *, window_s: float, seed: int) -> Compared | str:
    """Start a server and one client; return what both report, or what went wrong."""
    with TemporaryDirectory() as folder, told_server(TOLD) as served:
        ask = Ask(url=served.url, rate_per_s=rate_per_s, window_s=window_s, seed=seed, folder=Path(folder))
        said = run_client(client, ask)
    if isinstance(said, str):
        return said
    if served.truth is None:
        return "the server has too few responses"
    if served.truth.lengths != (PROMPT_TOKENS, NEW_TOKENS):
        return f"the client requested other lengths: {served.truth.lengths}"
    return Compared(said, served.truth)


def compared_line(results: Sequence[Compared | str], start_s: float | str) -> str:
    """Print the medians of a client's launches at a rate, or what went wrong."""
    rows = [row for row in results if isinstance(row, Compared)]
    if not rows:
        return "; ".join(str(row) for row in results)
    cpu_s = median(row.said.cpu_s / row.truth.num_requests for row in rows)
    above = ""
    if not isinstance(start_s, str):
        above_s = median((row.said.cpu_s - start_s) / row.truth.num_requests for row in rows)
        above = f" ({seconds(above_s)} excluding its start)" if above_s > 0 else ""
    return (
        f"{median(row.truth.answered_per_s for row in rows):.0f}/s answered; first token "
        f"{seconds(median(row.said.first_s for row in rows))}, "
        f"{median(row.first_error_s for row in rows) * 1e3:+.2f} "
        f"ms off; between tokens {seconds(median(row.said.gap_s for row in rows))}, "
        f"{median(row.gap_error for row in rows):+.1%}; CPU {seconds(cpu_s)} per request{above}, "
        f"{max(row.said.memory_mib for row in rows):.0f} MiB"
    )


def highest_true(results: Mapping[tuple[int, str], Sequence[Compared | str]], name: str) -> int | None:
    """Return the highest rate up to which all launches of a client were accurate, None if there is none."""
    highest = None
    for rate, rows in sorted((rate, rows) for (rate, client), rows in results.items() if client == name):
        if not all(isinstance(row, Compared) and row.is_true(rate) for row in rows):
            break
        highest = rate
    return highest


if __name__ == "__main__":
    main()
