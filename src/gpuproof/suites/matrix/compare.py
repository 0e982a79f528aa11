"""Compare configurations: each one's result over its seeds, and whether one is best.

The input is the launches of all cases. The output is one row per configuration with intervals, and the best
configuration, provided that every comparison with another configuration confirms it (all comparisons share
one error rate); otherwise the reason why there is no best configuration. Configurations that did not run the
same workload (different step counts or schedules) are not ranked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from types import MappingProxyType
from typing import Any

from gpuproof.base.groups import grouped
from gpuproof.base.units import first_of
from gpuproof.comparison.winners import ComparedSide, compare_sides, contest
from gpuproof.records.result import Better, Doubt, Measure
from gpuproof.statistics.comparison import MIN_LAUNCHES, compare_launches
from gpuproof.suites.base import LaunchKey
from gpuproof.suites.matrix.case_values import CaseValues
from gpuproof.suites.matrix.measures import MEAN_MEMORY, MEMORY, NO_POSITIONS, RESIDENT, WALL, measures_of

CONFIDENCE = 0.95
"""Probability that only the true best is reported as best, jointly over all configurations of a matrix."""
ACCURACIES = ("test_accuracy", "final_accuracy", "accuracy", "val_accuracy", "best_accuracy")
STEPS = ("steps", "total_steps", "global_step", "iterations", "epochs")
"""Names that programs use for the amount of work per case."""
LOWER_IS_BETTER = ("loss", "perplexity", "_s", "time", "error", "bytes", "seconds")
SPARSITY_APART, RATE_APART = 0.05, 0.05
"""Distance between schedules, at the same point, above which they count as different; rates are relative to
their highest value."""
DoubtsOfCases = Mapping[LaunchKey, Sequence[Doubt]]
"""Warnings about the results of each launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationValues:
    """The launches of one configuration, taken together."""

    name: str
    assignment: Mapping[str, Any]
    """Values of the configuration's fields, without the seed."""
    num_launches: int
    num_done: int
    metric: str
    """The metric that is compared."""
    memory_basis: str
    """Description of what the device memory includes; empty if launches differ."""
    doubts: tuple[Doubt, ...] = ()
    """Warnings about the configuration's launches."""
    measures: tuple[Measure, ...] = ()
    """Results of the configuration. In a run's result they are stored among the run's measures, not with the
    configuration."""

    def measure(self, name: str) -> Measure | None:
        """Return the measure with this name; None if there is none."""
        return next((measure for measure in self.measures if measure.name == name), None)

    def value(self, name: str) -> float | None:
        """Return the value of the measure with this name; None if there is none."""
        measure = self.measure(name)
        return None if measure is None else measure.value

    @property
    def values(self) -> tuple[float, ...]:
        """Values of the compared metric, one per launch."""
        return self.values_of(self.metric)

    def values_of(self, name: str) -> tuple[float, ...]:
        """Return a measure's values, one per launch."""
        measure = self.measure(name)
        return () if measure is None else tuple(launch.value for launch in measure.launches)

    @property
    def mean(self) -> float | None:
        """Mean of the compared metric."""
        return self.value(self.metric)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the mean; None if there is none."""
        measure = self.measure(self.metric)
        span = None if measure is None else measure.interval
        return None if span is None else (span.low, span.high)

    @property
    def side(self) -> ComparedSide:
        """The configuration as a side of a comparison."""
        return ComparedSide(name=self.name, values=self.values, doubts=self.doubts, value=self.mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRanking:
    """The best configuration, if any was shown to be best."""

    metric: str
    better: Better
    best: str | None
    missing: str | None
    """Reason why no configuration is reported as best."""
    contenders: tuple[str, ...]
    """Configurations not shown to be worse than the one with the best mean, which is included."""
    num_compared: int
    """Number of configurations that share one error rate."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """For each excluded configuration, why it cannot be best, ranked, or on a Pareto front."""


def memory_cost(configurations: Sequence[ConfigurationValues]) -> str:
    """Return the memory metric for Pareto fronts: device memory if any value exists, else resident."""
    return MEMORY if any(one.value(MEMORY) is not None for one in configurations) else RESIDENT


def choose_metric(
    cases: Sequence[CaseValues], metric: str | None, better: Better | None
) -> tuple[str, Better]:
    """Choose the metric: the given one, else an accuracy that all cases have, throughput, or time."""
    done = [case for case in cases if case.status == "done"]

    def all_have(name: str) -> bool:
        return bool(done) and all(name in case.metrics for case in done)

    name = metric or next(filter(all_have, (*ACCURACIES, "throughput", MEAN_MEMORY)), WALL)
    is_lower = any(name.endswith(end) or name == end for end in LOWER_IS_BETTER)
    return name, better or ("lower" if is_lower else "higher")


def configurations(
    cases: Sequence[CaseValues],
    metric: str,
    better: Better = "higher",
    *,
    seed: str,
    doubts: DoubtsOfCases = MappingProxyType({}),
    positions: Mapping[LaunchKey, int] = NO_POSITIONS,
) -> list[ConfigurationValues]:
    """Group the launches of each configuration, in matrix order."""
    groups = grouped((case.configuration, case) for case in cases)
    found = []
    for name, group in groups.items():
        done = [case for case in group if case.status == "done"]
        assignment = {
            key: value
            for key, value in group[0].assignment.items()
            if seed not in (key, key.rpartition(".")[2])
        }
        bases = {case.memory.basis for case in done}
        of_launches = (doubt for case in done for doubt in doubts.get((case.case_id, case.replicate), ()))
        measures = measures_of(done, metric, better, name=name, labels=assignment, positions=positions)
        found.append(
            ConfigurationValues(
                name=name,
                assignment=assignment,
                num_launches=len(group),
                num_done=len(done),
                metric=metric,
                memory_basis=next(iter(bases)) if len(bases) == 1 else "",
                doubts=tuple(dict.fromkeys(of_launches)),
                measures=tuple(measures),
            )
        )
    return found


def rank_configurations(
    figures: Sequence[ConfigurationValues], metric: str, better: Better, *, unlike: Sequence[Doubt] = ()
) -> MatrixRanking:
    """Return the best configuration if every comparison with another one confirms it.

    A wrong configuration is reported if it appears to be better than the true best. For each of k candidates,
    the probability of this is at most its own one-tailed error, so each is allotted one k-th of the total.
    All comparisons of a candidate have to confirm it, so they need no further correction (an
    intersection-union test; Berger 1982, Technometrics 24). The degrees of freedom come from the smaller
    side, because there are few seeds, and variances differ between configurations.
    """
    measured = [one for one in figures if one.mean is not None]
    sides = contest([one.side for one in measured], better=better, figure=metric)
    lost = _lost(figures, metric)
    left_out = {**sides.left_out, **lost}
    usable = [one for one in measured if one.name not in left_out]
    sign = 1 if better == "higher" else -1
    first = max(measured, key=lambda one: sign * (one.mean or 0.0), default=None)
    is_lost = first is not None and first.name in lost
    missing = f"{lost[first.name]}, and its result is the best" if first and is_lost else sides.missing
    unnamed = MatrixRanking(
        metric=metric,
        better=better,
        best=None,
        missing=missing or _reason_not_ranked(figures, usable, metric, unlike),
        contenders=(),
        num_compared=len(usable),
        left_out=left_out,
    )
    if unnamed.missing is not None:
        return unnamed
    return _best_of(usable, unnamed)


def _best_of(usable: Sequence[ConfigurationValues], unnamed: MatrixRanking) -> MatrixRanking:
    """Name the configuration that is shown to be better than all others that can be used, if there is one."""
    metric, better = unnamed.metric, unnamed.better
    sign = 1 if better == "higher" else -1
    top = max(usable, key=lambda one: sign * (one.mean or 0.0))
    level = 1 - 2 * (1 - CONFIDENCE) / len(usable)

    def is_worse(one: ConfigurationValues) -> bool:
        compared = compare_sides(top.side, one.side, better=better, confidence=level, figure=metric)
        return compared.verdict == "slower"

    left = [one.name for one in usable if one is not top and not is_worse(one)]
    if left:
        reason = f"no difference shown between {top.name} and {first_of(left, 3)}"
        return replace(unnamed, missing=reason, contenders=(top.name, *left))
    return replace(unnamed, best=top.name, contenders=(top.name,))


def _lost(figures: Sequence[ConfigurationValues], metric: str) -> dict[str, str]:
    """Report, for each configuration with launches that ended well without the metric, how many have it."""
    return {
        one.name: f"{one.name} has {metric} in only {len(one.values)} of {one.num_done} launches"
        for one in figures
        if len(one.values) < one.num_done
    }


def _reason_not_ranked(
    figures: Sequence[ConfigurationValues],
    usable: Sequence[ConfigurationValues],
    metric: str,
    unlike: Sequence[Doubt],
) -> str | None:
    """Report why configurations cannot be compared; None if they can."""
    if not any(one.values for one in figures):
        return f"no launch has {metric}"
    if len(usable) < 2:
        too_few = f"fewer than two configurations have {metric} in all launches"
        is_one = len(figures) < 2
        return (
            "there is only one configuration, so there is nothing to compare it with" if is_one else too_few
        )
    if unlike:
        return "configurations did not do the same work, as noted above"
    few = [one.name for one in usable if len(one.values) < MIN_LAUNCHES]
    if few:
        return f"{few[0]} has {_launches(usable, few[0])} (needs {MIN_LAUNCHES}: more seeds, or run.repeats)"
    if any(value <= 0 for one in usable for value in one.values):
        return f"a value of {metric} is not above 0, so no ratio is defined"
    return None


def _launches(usable: Sequence[ConfigurationValues], name: str) -> str:
    num = next(len(one.values) for one in usable if one.name == name)
    return f"{num} launch{'' if num == 1 else 'es'}"


def differing_work(cases: Sequence[CaseValues]) -> Iterator[Doubt]:
    """Yield reasons why configurations cannot be ranked: different step counts or schedules."""
    done = [case for case in cases if case.status == "done"]
    for name in STEPS:
        counts = [(case.metrics[name], case) for case in done if name in case.metrics]
        if len({count for count, _ in counts}) > 1:
            low, high = (end(counts, key=lambda counted: counted[0]) for end in (min, max))
            is_one = low[1].configuration == high[1].configuration
            names = [case.case_id if is_one else case.configuration for _, case in (low, high)]
            yield Doubt(
                validity="SUSPECT",
                code="unequal-steps",
                reason=f"cases did not do the same work: {low[0]:g} {name} for {names[0]}, "
                f"{high[0]:g} for {names[1]}",
                remedy="Give all of them the same number of steps; until then they are not ranked",
            )
            break
    yield from _differing_schedules(done)


def _differing_schedules(done: Sequence[CaseValues]) -> Iterator[Doubt]:
    """Compare schedules at the same relative point, among cases with the same final value."""
    for name, limit in (("sparsity", SPARSITY_APART), ("learning_rate", RATE_APART)):
        first: dict[float, tuple[str, tuple[float, ...]]] = {}
        for case in done:
            course = case.schedules.get(name)
            if not course:
                continue
            # Cases with different final sparsities are meant to differ, but learning rates should be the same
            # for all.
            end = round(course[-1] / limit) if name == "sparsity" else 0.0
            other, reference = first.setdefault(end, (case.configuration, course))
            apart, at = _furthest(
                course, reference, scale=1.0 if name == "sparsity" else max(*course, *reference)
            )
            if apart > limit:
                yield Doubt(
                    validity="SUSPECT",
                    code=f"unlike-{name.replace('_', '-')}",
                    reason=f"schedules differ: {name} of {case.configuration} and {other} differ "
                    f"by {apart:.0%} at point {at + 1} of {min(len(course), len(reference))}",
                    remedy="Give all cases the same schedule; until then they are not ranked",
                )
                break


def _furthest(a: Sequence[float], b: Sequence[float], *, scale: float) -> tuple[float, int]:
    if scale <= 0:
        return 0.0, 0
    num = min(len(a), len(b))
    a, b = (_at_points(course, num) for course in (a, b))
    return max((abs(x - y) / scale, at) for at, (x, y) in enumerate(zip(a, b, strict=True)))


def _at_points(course: Sequence[float], num: int) -> list[float]:
    """Return a series at `num` equally distant points, the first and the last included."""
    last = len(course) - 1
    return [course[round(at * last / max(1, num - 1))] for at in range(num)]


def pareto_front(
    group: Sequence[ConfigurationValues],
    cost: str,
    better: Better,
    *,
    figures: Sequence[str] = ("",),
) -> list[str]:
    """Return configurations that trade the metric against a cost, if launches show the difference.

    A configuration is dominated by another that is shown to be better in either the metric or the cost, and
    worse in neither. The Pareto front contains the configurations that are not dominated and that trade off
    against another one on the front: each of the two is shown to be better in one respect. So a single
    configuration is not a front, and neither are configurations between which no difference was detected. All
    comparisons share one error rate. Configurations that are unusable in one of the `figures` are not on any
    front.
    """
    measured = [one for one in group if one.mean is not None and one.value(cost) is not None]
    sides = [one.side for one in measured]
    left_out = {name for figure in figures for name in contest(sides, better=better, figure=figure).left_out}
    usable = [one for one in measured if one.name not in left_out]
    level = 1 - (1 - CONFIDENCE) / max(1, len(usable) * (len(usable) - 1))  # two metrics per pair
    shown = {
        (a.name, b.name): (
            _is_better(a.values, b.values, better, level),
            _is_better(a.values_of(cost), b.values_of(cost), "lower", level, is_exact=cost != WALL),
        )
        for a, b in permutations(usable, 2)
    }
    unbeaten = [
        b.name
        for b in usable
        if not any(
            any(shown[a.name, b.name]) and not any(shown[b.name, a.name]) for a in usable if a is not b
        )
    ]
    trades = {pair for pair in permutations(unbeaten, 2) if any(shown[pair]) and any(shown[pair[::-1]])}
    return [name for name in unbeaten if any(name == a for a, _ in trades)]


def _is_better(
    a: Sequence[float], b: Sequence[float], better: Better, confidence: float, *, is_exact: bool = False
) -> bool:
    """Report whether launches show that A is better than B; if there is no ratio, they show nothing.

    Exact values (bytes) that are the same in all launches of each side are compared directly.
    """
    if min(*a, *b, 1.0) <= 0:
        return False
    if is_exact and min(len(a), len(b)) >= MIN_LAUNCHES and len({*a}) == len({*b}) == 1:
        return a[0] < b[0] if better == "lower" else a[0] > b[0]
    return compare_launches(b, a, better=better, confidence=confidence, is_cautious=True).verdict == "faster"
