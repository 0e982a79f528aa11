"""Evaluate one of several hosts with the inner suite, and report its failures.

If the host could not be reached for a launch, that is a failure of the host, not of the recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from gpuproof.base.groups import grouped
from gpuproof.launches.launch import throughput
from gpuproof.launches.point_measures import ENERGY, ITEMS, WINDOW, PointMeasures
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import from_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.result import WHOLE, Measure, Result
from gpuproof.records.run import Failure, Start, is_host_failure
from gpuproof.suites.base import Conclusion, Suite, launch_key
from gpuproof.suites.by_host.hosts import HostMeasured, cost_per_million
from gpuproof.suites.by_host.plan import as_on_one_machine
from gpuproof.suites.points.ranking import rank
from gpuproof.suites.points.results import read_values
from gpuproof.suites.sections import Common

UNKNOWN_TYPE = "devices of unknown type"
NOT_BEGUN = "nothing was launched there"
NOT_ENDED = "not all of its launches ran"
LAUNCHES_OF_TIMES = 3
"""Launches needed to compare a host based on times: with only two, both may hit an intermittent stall."""
BEFORE_IT_RUNS = ("setup", "deploy", "execute")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConclusion:
    """The inner suite's conclusion for one host."""

    host: Mapping[str, Any]
    """The host's description, as recorded in run.json."""
    conclusion: Conclusion
    """The inner suite's conclusion, with only the per-host files. Generators of the other files would keep
    everything measured on the host in memory, and for hosts with points those files cover all hosts
    together."""
    common: Common
    points: Mapping[str, PointMeasures]
    """Points by name, in order; the recipe itself if there are no points. Empty if hosts have only their own
    results: requests, collectives, or points that a search chose on each host."""
    unreached: Failure | None
    """Failure that prevented a launch from being started on the host."""

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return str(self.host["name"])

    @property
    def result(self) -> Result:
        """The inner suite's result for the host."""
        return self.conclusion.result

    @property
    def is_single(self) -> bool:
        """Whether the host ran a single recipe, not points or tests."""
        return not any(point.assignment for point in self.points.values())

    @property
    def headlines(self) -> dict[str, Measure]:
        """Results for the whole host for which one direction is better, by name; one metric only."""
        of_whole = self.result.measures[: self.result.detail.get("num_headlines")]
        compared = [measure for measure in of_whole if measure.subject == WHOLE and measure.better]
        quantities = {measure.labels.get("quantity") for measure in compared[:1]}
        return titled(m for m in compared if m.labels.get("quantity") in quantities)

    @property
    def gpu_type(self) -> str | None:
        """GPU type according to the inventory, or otherwise as reported by the GPUs."""
        devices = (point.device for point in self.points.values() if point.device)
        return self.host.get("gpu_type") or next(devices, self.result.conditions.get("device"))

    @property
    def num_devices(self) -> int | None:
        """Number of devices that were measured, or else the number in the inventory."""
        counts = (point.num_devices for point in self.points.values() if point.num_launches)
        return next(counts, self.host.get("gpus"))

    @property
    def best(self) -> str | None:
        """The point with the highest throughput; None for tests, because they are not ranked."""
        best = rank(list(self.points.values())).best if self.common.is_ranked else None
        return None if best is None else best.case_id

    def measured(self, name: str) -> HostMeasured | None:
        """Return the results of a finished point or of the single recipe; None if there are none."""
        point = self.points[name]
        return self.figures(point) if self.is_single or point.success else None

    def comparable(self, name: str) -> HostMeasured | None:
        """Return the results of a point that are compared with other hosts: INVALID ones are not."""
        return None if self.points[name].validity == "INVALID" else self.measured(name)

    def figures(self, point: PointMeasures) -> HostMeasured | None:
        """Return a point's results in the form used to compare hosts; None if nothing was measured."""
        items, window_s = point.value(ITEMS), point.value(WINDOW)
        if not items or not window_s or point.num_devices is None or point.device is None:
            return None
        return HostMeasured(
            host=self.name,
            gpu_type=self.host.get("gpu_type") or point.device,
            num_devices=point.num_devices,
            items_per_s_total=throughput(items, window_s),
            items_total=int(items),
            relative_reach=None if point.rate is None else _reach(point.rate),
            energy_j=point.value(ENERGY),
            price_per_hour=self.host.get("price_per_hour"),
        )

    @property
    def energy_and_cost(self) -> tuple[float | None, float | None]:
        """Return energy per item and cost per million over everything requested; None if unknown.

        Points are weighted by their number of items. The values are None unless all points finished.
        """
        points = list(self.points.values())
        if self.is_single:
            whole = self.figures(points[0])
            return (None, None) if whole is None else (whole.energy_j_per_item, whole.cost_per_million_items)
        if not all(point.success for point in points) or len({point.item for point in points}) != 1:
            return None, None
        items, window_s = (sum(point.value(name) or 0.0 for point in points) for name in (ITEMS, WINDOW))
        joules = [energy_j for point in points if (energy_j := point.value(ENERGY)) is not None]
        price = self.host.get("price_per_hour")
        return (
            sum(joules) / items if len(joules) == len(points) else None,
            None if price is None else cost_per_million(price, items / window_s),
        )

    def rate(self, headline: str) -> HostMeasured | None:
        """Return a rate for comparing hosts (for a time, its inverse); None if the result is neither.

        A time requires enough launches to show their spread, because a stall raises one launch's percentile
        tenfold.
        """
        measure = self.headlines.get(headline)
        if measure is None or not measure.value or self.result.validity == "INVALID":
            return None
        is_known_time = measure.unit == "s" and len(measure.launches) >= LAUNCHES_OF_TIMES
        if not is_known_time and not measure.unit.endswith("/s"):
            return None
        return HostMeasured(
            host=self.name,
            gpu_type=self.gpu_type or UNKNOWN_TYPE,
            num_devices=1,
            items_per_s_total=measure.value if measure.better == "higher" else 1 / measure.value,
            items_total=1,
            relative_reach=_reach(measure),
        )

    @property
    def host_failure(self) -> Failure | None:
        """Reason why the host could not be reached; None if it could."""
        failures = [*(f for point in self.points.values() for f in point.failures), *self.result.failures]
        return self.unreached or next(filter(is_host_failure, failures), None)

    def told_failures(self) -> list[Failure]:
        """Return the failures under the host's name, merging those that are identical at several points."""
        told = [] if self.unreached is None else [self.unreached]
        if not self.points:
            return [*told, *(replace(failure, host=self.name) for failure in self.result.failures)]
        if self.is_single:
            return [*told, *(f for point in self.points.values() for f in point.failures)]
        alike: dict[tuple[str, str], list[tuple[str, Failure]]] = {}
        for name, point in self.points.items():
            for failure in point.failures:
                alike.setdefault((failure.cause, failure.message), []).append((name, failure))
        for occurrences in alike.values():
            name, first = occurrences[0]
            more = f" and {len(occurrences) - 1} more" if len(occurrences) > 1 else ""
            told.append(replace(first, message=f"at {name}{more}: {first.message}"))
        return [replace(failure, host=self.name) for failure in told]

    def incomplete(self) -> tuple[str | None, str] | None:
        """Return at which stage the host failed, if known, and why; None if it completed everything.

        A host with failed tests still counts as complete, unless nothing was measured.
        """
        points = list(self.points.values())
        if not points:
            failures = list(self.result.failures)
            num_planned, num_measured = self.result.num_planned, self.result.num_launches
        elif self.is_single:
            failures = list(points[0].failures)
            num_planned, num_measured = points[0].num_planned, points[0].num_launches
        else:
            failures = [failure for point in points for failure in point.failures[:1]]
            num_planned, num_measured = len(points), sum(bool(point.success) for point in points)
        told = self.host_failure or next(iter(failures), None)
        if self.host_failure is None and num_measured and num_measured + len(failures) >= num_planned:
            return None
        if told is None:
            return None, NOT_ENDED if num_measured else NOT_BEGUN
        return failure_stage(told), told.message or told.cause

    def sentences(self) -> list[str]:
        """Report an anomaly only once if it is worded the same at several points."""
        found = grouped((remark.text, remark.case_id) for remark in self.common.remarks)
        if self.is_single:
            return list(found)
        return [
            f"{text} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
            for text, names in found.items()
        ]


def _reach(measure: Measure) -> float | None:
    """Return the between-launch uncertainty of a rate or inverse time; None if unknown."""
    interval, value = measure.interval, measure.value
    if not value or interval is None or interval.kind == "within_launch":
        return None
    if measure.better == "lower":
        return max(value / interval.low - 1, 1 - value / interval.high) if interval.low > 0 else inf
    return max(value - interval.low, interval.high - value) / abs(value)


def is_bounded(measure: Measure) -> bool:
    """Report whether a search narrowed a value to a range."""
    return measure.interval is not None and measure.interval.kind == "bound"


def titled(measures: Iterable[Measure]) -> dict[str, Measure]:
    """Return measures by name; if names are equal, the distinguishing labels are added."""
    by_title = {}
    for name, alike in grouped((measure.name, measure) for measure in measures).items():
        apart = [
            label for label in alike[0].labels if len({measure.labels.get(label) for measure in alike}) > 1
        ]
        for measure in alike:
            words = (measure.labels.get(label) for label in apart)
            by_title[", ".join([name, *(word for word in words if isinstance(word, str))])] = measure
    return by_title


def failure_stage(failure: Failure) -> str:
    """Return the stage of a failure; failures reported by a rank itself count as execution failures."""
    return failure.phase if is_host_failure(failure) else "execute"


def conclude_host(
    evidence: Evidence, host: Mapping[str, Any], launches: Sequence[CaseRecords], inner: Suite
) -> HostConclusion:
    """Evaluate one host's records as if it were the only machine."""
    own = [as_on_one_machine(launch) for launch in launches]
    placed = {launch_key(of.case): launch.case for of, launch in zip(own, launches, strict=True)}
    conclusion = inner.conclude(
        replace(
            evidence,
            launches=tuple(launch for launch in own if _never_begun(launch) is None),
            hosts=(host,),
            recording_at=lambda case, of: evidence.recording_at(placed[launch_key(case)], of),
            folder_of=lambda case: evidence.folder_of(placed[launch_key(case)]),
        )
    )
    detail = conclusion.result.detail
    # A search chooses its points based on its results on each host, so hosts share no points.
    points = () if detail.get("is_search") else read_values(conclusion.result)
    return HostConclusion(
        host=host,
        conclusion=replace(
            conclusion, exports=tuple(x for x in conclusion.exports if x.is_of_host or not points)
        ),
        common=from_json(Common, detail["common"]),
        points={point.case_id: point for point in points},
        unreached=next((failure for launch in own if (failure := _never_begun(launch))), None),
    )


def _never_begun(launch: CaseRecords) -> Failure | None:
    """Return the failure that prevented a launch from starting on the host; None if it did start."""
    failure = launch.primary_failure
    if failure is None or launch.of(Start) or not is_host_failure(failure):
        return None
    return failure if failure.phase in BEFORE_IT_RUNS else None
