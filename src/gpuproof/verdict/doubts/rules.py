"""The registry of all validity rules, and what the rules say about several launches together.

A launch rule sees the launch's records and what its device can do; a readings rule sees what was monitored
during the launch; a run rule sees how launches differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from gpuproof.base.units import NOT_WELL_ENOUGH, plus_minus
from gpuproof.launches.explanations import LaunchExplanation
from gpuproof.records.result import Doubt
from gpuproof.statistics.estimate import Interval, Unavailable
from gpuproof.statistics.launches import more_launches
from gpuproof.verdict.doubts.base import GRAVEST, Measured, Rule, suspect
from gpuproof.verdict.doubts.collectives import unequal_ranks
from gpuproof.verdict.doubts.interference import device_faults, shared_cpu, shared_device
from gpuproof.verdict.doubts.plausibility import (
    contradictions,
    other_than_configured,
    over_ceiling,
    uncounted_work,
    work_disagrees,
    wrong_products,
)
from gpuproof.verdict.doubts.window import (
    LIMITS,
    gaps,
    growing,
    limited,
    made_before,
    not_finite,
    skipped,
    too_short,
    unsteady,
)

LAUNCHES_DIFFER = "launches-differ"
WIDE_INTERVAL = 0.05
"""Maximum distance from the centre to the farther end of the interval, relative to the centre; if it is
larger, the run reveals little."""
FEW_LAUNCHES = 10
"""If at most this many launches would be enough, the launches do not vary much; there are just too few."""
OF_STEPS: tuple[Rule, ...] = (
    contradictions,
    over_ceiling,
    too_short,
    gaps,
    unsteady,
    growing,
    shared_cpu,
    shared_device,
    unequal_ranks,
    other_than_configured,
    work_disagrees,
    uncounted_work,
    limited,
    made_before,
    wrong_products,
    not_finite,
    skipped,
)
"""Rules for launches that run steps."""
NEIGHBOURS: tuple[Rule, ...] = (shared_cpu, shared_device)
"""Rules for launches of other workloads, in addition to the rules for that kind of workload."""
OF_READINGS = (device_faults,)


def doubts_about(measured: Measured) -> tuple[Doubt, ...]:
    """Return every warning about one launch."""
    return tuple(doubt for rule in _rules_of(measured) for doubt in rule(measured))


def _rules_of(measured: Measured) -> tuple[Rule, ...]:
    """Return the rules for the launch's kind of workload, without importing those for other kinds."""
    if measured.probe is not None:
        from gpuproof.verdict.doubts.collectives import OF_PROBES

        return (*OF_PROBES, *NEIGHBOURS)
    if measured.collectives is not None:
        from gpuproof.verdict.doubts.collectives import OF_COLLECTIVES

        return (*OF_COLLECTIVES, *NEIGHBOURS)
    if measured.served is not None:
        from gpuproof.verdict.doubts.serving import OF_REQUESTS

        return (*OF_REQUESTS, *NEIGHBOURS)
    return OF_STEPS


def doubts_about_readings(explanations: Iterable[LaunchExplanation]) -> list[Doubt]:
    """Return the warnings that result from readings during launches."""
    return [doubt for explanation in explanations for rule in OF_READINGS for doubt in rule(explanation)]


def doubts_about_differences(interval: Interval | Unavailable, *, of: str) -> list[Doubt]:
    """Return warnings about launches that differ or are too few, from the interval between launches."""
    if isinstance(interval, Unavailable) or interval.relative_reach is None:
        return []
    if not interval.between_launches or interval.relative_reach <= WIDE_INTERVAL:
        return []
    reach, target = plus_minus(interval.relative_reach), plus_minus(WIDE_INTERVAL)
    is_known, number = reach != NOT_WELL_ENOUGH, interval.num_launches
    enough = more_launches(interval, relative_half_width=WIDE_INTERVAL)
    if reach == target:
        reach = f"just over {target}"  # otherwise both would look the same
    if is_known and isinstance(enough, int) and enough <= FEW_LAUNCHES:
        reason = f"{number} launches are too few: the interval of the {of} is {reach} wide; {enough} "
        return [
            suspect(
                LAUNCHES_DIFFER,
                f"{reason}that differ as much would reach {target}",
                f"Raise run.repeats to {enough} or more, or set run.target_precision with 5 or more",
            )
        ]
    which = f"{of} of {number} launches is"
    return [
        suspect(
            LAUNCHES_DIFFER,
            f"launches differ: the interval of the {which} {reach} wide"
            if is_known
            else f"launches differ: the {which} {reach}",
            "Raise run.repeats, measure longer, or find out what differs between launches",
        )
    ]


def doubts_about_devices(names: Collection[str]) -> list[Doubt]:
    """Return a warning if a queue or a list of hosts gave launches devices of different models."""
    if len(names) < 2:
        return []
    return [
        suspect(
            "devices-differ",
            f"launches ran on different devices: {', '.join(sorted(names))}",
            "Measure each model in a run of its own: choose its hosts, or a queue that has only one model",
        )
    ]


def weighed(doubts: Sequence[Doubt], *, is_of_device: bool) -> tuple[Doubt, ...]:
    """Return warnings by severity; host and loader count for device rates, or if launches differ."""
    counts = is_of_device or any(doubt.code == LAUNCHES_DIFFER for doubt in doubts)
    codes = set(LIMITS.values()) if counts else set()
    return invalid_first(replace(x, validity="SUSPECT") if x.code in codes else x for x in doubts)


def invalid_first(doubts: Iterable[Doubt]) -> tuple[Doubt, ...]:
    """Order warnings by severity, keeping the order within one severity."""
    return tuple(sorted(doubts, key=lambda doubt: GRAVEST.index(doubt.validity)))


def joined_doubts(launches: Sequence[Sequence[Doubt]]) -> list[Doubt]:
    """Merge the warnings of launches: one that occurs for several is reported once, with a count."""
    by_code: dict[str, dict[int, list[Doubt]]] = {}
    for number, doubts in enumerate(launches):
        for doubt in doubts:
            by_code.setdefault(doubt.code, {}).setdefault(number, []).append(doubt)
    return [_counted(list(same.values()), num_launches=len(launches)) for same in by_code.values()]


def _counted(same: Sequence[Sequence[Doubt]], *, num_launches: int) -> Doubt:
    """Merge per-launch warnings with the same code; several per launch come from different ranks."""
    first = same[0][0]
    counts = []
    if len(same[0]) > 1:
        counts.append(f"and {len(same[0]) - 1} more like it")
    if num_launches > 1:
        counts.append(f"in {len(same)} of {num_launches} launches")
    return replace(first, reason=f"{first.reason} ({', '.join(counts)})") if counts else first
