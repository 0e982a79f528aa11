"""Are results from many ranks, without a model, credible: correct, similar and steady?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuproof.base.units import count, memory, seconds, share
from gpuproof.launches.collectives import CollectiveValues
from gpuproof.launches.probes import WRONG_VALUES, ProbeValue
from gpuproof.launches.ranks import Basis, RanksCompared, RankValues, compare_ranks
from gpuproof.records.result import Doubt
from gpuproof.statistics.dispersion import noise
from gpuproof.verdict.doubts.base import WRONG, Measured, Rule, invalid, suspect

RANKS_APART = 0.2
"""Allowed difference, as a fraction of the fastest rank's mean time: ranks of a symmetric operation wait for
each other and finish together."""
SCATTER = 0.25
"""Maximum interquartile range of the iteration times, divided by their median; an operation is short compared
with a step."""
FEW_ITERATIONS = 10
SAID_OF: Mapping[Basis, str] = {
    "own steps": "without gradient sync, after the window; in the window all ranks wait for the slowest",
    "steps in the window": "in the window, where each rank works on its own",
    "windows": "to the end of the window",
}


def wrong_results(measured: Measured) -> Iterator[Doubt]:
    """Find results that do not match what was sent."""
    wrong = [figures for figures in _figures(measured) if figures.num_wrong]
    if wrong:
        worst = max(wrong, key=lambda figures: figures.num_wrong)
        ranks = ", ".join(map(str, sorted({rank for figures in wrong for rank in figures.wrong_ranks})))
        yield invalid(
            WRONG,
            f"{count(worst.num_wrong)} of {count(worst.num_checked)} elements of {_name(worst)} are wrong; "
            f"{len(wrong)} of {len(_figures(measured))} sizes have wrong results, seen on rank {ranks}",
            "Do not use this machine: data is corrupted in transit. Run on fewer ranks to find out where",
        )


def results_not_checked(measured: Measured) -> Iterator[Doubt]:
    """Find results that were not compared with anything."""
    reasons = [figures.not_checked for figures in _figures(measured) if figures.not_checked]
    if reasons:
        yield suspect(
            "not-checked",
            f"results of {len(reasons)} of {len(_figures(measured))} sizes were not compared: {reasons[0]}",
            "Set collective.check_iterations to 1 (-c 1), and use a type that can hold the sums",
        )


def operations_left_out(measured: Measured) -> Iterator[Doubt]:
    """Find requested operations that have no result at any size."""
    missing = () if measured.collectives is None else measured.collectives.not_measured
    if missing:
        yield suspect(
            "not-measured",
            f"nothing was measured for {', '.join(missing)}: at no size did each rank have an "
            "element and a time",
            "Raise collective.min_bytes (-b) and max_bytes (-e)",
        )


def uneven_ranks(measured: Measured) -> Iterator[Doubt]:
    """Find symmetric operations for which some ranks took much longer than others."""
    symmetric = [figures for figures in _figures(measured) if figures.is_symmetric]
    apart = [figures for figures in symmetric if figures.rank_spread > RANKS_APART]
    if apart:
        worst = max(apart, key=lambda figures: figures.rank_spread)
        slowest = worst.rank_times_s.index(max(worst.rank_times_s))
        yield suspect(
            "ranks-differ",
            f"at {len(apart)} of {len(symmetric)} sizes the ranks took different amounts of time; most at "
            f"{_name(worst)}, where rank {slowest} took {share(worst.rank_spread)} longer than the fastest",
            "Raise collective.warmup_iterations (-w) and iterations (-n); check that rank's host and links",
        )


def scattered(measured: Measured) -> Iterator[Doubt]:
    """Find sizes at which iteration times scatter, or that have too few iterations to evaluate."""
    figures = _figures(measured)
    if few := [operation for operation in figures if len(operation.iterations_s) < FEW_ITERATIONS]:
        yield suspect(
            "few-steps",
            f"too few iterations were timed: {len(few[0].iterations_s)}, and at least "
            f"{FEW_ITERATIONS} are needed",
            "Raise collective.iterations (-n)",
        )
    spreads = [(noise(operation.iterations_s) or 0.0, operation) for operation in figures]
    wide = [(spread, operation) for spread, operation in spreads if spread > SCATTER]
    if wide:
        spread, worst = max(wide, key=lambda pair: pair[0])
        yield suspect(
            "noisy",
            f"at {len(wide)} of {len(figures)} sizes the interquartile range of the times is more "
            f"than {share(SCATTER)} of their median; largest at {_name(worst)}: {share(spread)} of "
            f"{seconds(worst.latency(50).value)}",
            "Raise collective.iterations (-n), look for other users of the links or the CPUs",
        )


def devices_passed_over(measured: Measured) -> Iterator[Doubt]:
    """Find ranks that communicated through host memory although GPUs are available."""
    collectives, launch = measured.collectives, measured.launch
    if collectives is not None and collectives.num_gpus_seen and launch.setup.device.kind == "cpu":
        yield suspect(
            "gpus-not-used",
            f"the ranks communicated over {launch.setup.backend} through host memory, but the host "
            f"has {collectives.num_gpus_seen} GPUs: their links were not measured",
            "Set distributed.device to cuda and distributed.backend to auto",
        )


def _figures(measured: Measured) -> tuple[CollectiveValues, ...]:
    return () if measured.collectives is None else measured.collectives.figures


def _name(figures: CollectiveValues) -> str:
    return f"{figures.operation} of {memory(figures.size_bytes)}"


def wrong_words(measured: Measured) -> Iterator[Doubt]:
    """Find values that differ from what was written or computed."""
    values = [value for value in _values(measured) if value.quantity == WRONG_VALUES]
    wrong = [value for value in values if value.value]
    if wrong:
        worst = max(wrong, key=lambda value: value.value or 0.0)
        evidence = "; ".join(worst.evidence)
        yield invalid(
            WRONG,
            f"{count(int(worst.value or 0))} values are wrong at {worst.subject} ({evidence}); "
            f"{len(wrong)} of {len(values)} comparisons found wrong values",
            "Take it out of service and send these records to its vendor; run it again to see "
            "whether the error persists",
        )


def scattered_repeats(measured: Measured) -> Iterator[Doubt]:
    """Find results with too few repeats, or with repeats that vary too much, except of a disk."""
    timed = [value for value in _values(measured) if value.durations_s and "access" not in value.labels]
    if few := [value for value in timed if len(value.durations_s) < FEW_ITERATIONS]:
        yield suspect(
            "few-steps",
            f"too few repeats were timed: {len(few[0].durations_s)}, and at least {FEW_ITERATIONS} "
            "are needed",
            "Raise the probe's number of iterations",
        )
    wide = [(spread, value) for value in timed if (spread := noise(value.durations_s) or 0.0) > SCATTER]
    if wide:
        spread, worst = max(wide, key=lambda pair: pair[0])
        middle_s = sorted(worst.durations_s)[len(worst.durations_s) // 2]
        yield suspect(
            "noisy",
            f"for {len(wide)} of {len(timed)} results the interquartile range of the times is more "
            f"than {share(SCATTER)} of their median; largest at {worst.subject}: {share(spread)} "
            f"of {seconds(middle_s)}",
            "Raise the probe's number of iterations, look for other users of the links or the CPUs",
        )


def _values(measured: Measured) -> tuple[ProbeValue, ...]:
    return () if measured.probe is None else measured.probe.values


OF_COLLECTIVES: tuple[Rule, ...] = (
    wrong_results,
    results_not_checked,
    operations_left_out,
    devices_passed_over,
    uneven_ranks,
    scattered,
)
"""Applies to launches that measure operations across all ranks, which take different amounts of time at
different sizes by design."""
OF_PROBES: tuple[Rule, ...] = (wrong_words, scattered_repeats)
"""Applies to launches that examine one property instead of running steps with equal workloads."""


def unequal_ranks(measured: Measured) -> Iterator[Doubt]:
    """Find ranks that are outliers."""
    compared = compare_ranks(measured.launch)
    if compared is None or not compared.apart:
        return
    yield suspect(
        "unequal-ranks",
        f"{_named(compared)}: {_times(compared)} {SAID_OF[compared.basis]}",
        "Check that host's other processes and the CPUs of each rank"
        if compared.apart[0].device.kind == "cpu"
        else "Check that device's clock, temperature and other processes, or omit it (distributed.devices)",
    )


def _named(compared: RanksCompared) -> str:
    first, *more = compared.apart
    by = first.slower_by if first.slower_by > 0 else -first.slower_by
    others = (
        f" (as {'are' if len(more) > 1 else 'is'} rank {', '.join(str(r.rank) for r in more)})"
        if more
        else ""
    )
    peers = "the other rank" if len(compared.ranks) == 2 else "the median of the other ranks"
    word = "slower" if first.slower_by > 0 else "faster"
    return f"{rank_name(first)} is {share(by)} {word} than {peers}{others}"


def _times(compared: RanksCompared) -> str:
    first = compared.apart[0]
    time_s = compared.time_s(first)
    unit = "" if compared.basis == "windows" else " a step"
    return f"{seconds(time_s)} against {seconds(time_s / (1 + first.slower_by))}{unit}"


def rank_name(rank: RankValues) -> str:
    """Return a rank's name, with its number, host and device."""
    return f"rank {rank.rank} on {rank.host} ({device_name(rank)})"


def device_name(rank: RankValues) -> str:
    """Describe a rank's device so that it can be identified: by its permanent identity if it has one."""
    device = rank.device
    which = device.uuid or ("" if device.index is None else f"{device.kind}:{device.index}")
    return f"{device.name} {which}".rstrip()
