"""The suite of kind `serving`: one scenario, or the search for the highest rate that meets a latency bound.

In: the config and the launches so far. Out: the launches that come next; none when it is finished. The search
guesses no rate: an offline launch gives what the server can do at all, and halving the distance between the
highest rate that met the bound and the lowest that did not closes in on the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuproof.analysis.serving import Served, served_of
from gpuproof.config.models import RunConfig
from gpuproof.config.sections.serving import ServingConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.serving_spec import EndpointSpec, Scenario, ServingSpec
from gpuproof.suites.served_text import TextSizes, text_of
from gpuproof.suites.training import CASE_ID, case_of, launch_key

OFFLINE = "offline"
LOWEST_SHARE = 1 / 64
"""Of the offline rate: where even this misses the bound, no rate is said to meet it."""
CURVE_SHARES = (0.1, 0.25, 0.5, 0.75)
"""Of the highest rate: the points of the curve below it."""
NEAR = 0.05
"""A point of the curve this near to a measured one is not measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What to launch next: a name, and the scenario with its rate."""

    case_id: str
    scenario: Scenario
    rate_per_s: float | None = None
    is_repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """How far the search for the highest rate is."""

    ceiling_per_s: float | None
    """Requests a second of the offline launch; None before it."""
    met_per_s: float | None
    """The highest rate that met the bound."""
    not_met_per_s: float | None
    """The lowest rate that did not, by a miss or by too few requests to tell."""
    precision: float

    @property
    def is_finished(self) -> bool:
        """Say whether the two rates are as near as asked, or there is nothing to be found."""
        if self.ceiling_per_s is None:
            return False
        if self.met_per_s is None:
            return self.not_met_per_s is not None and (
                self.not_met_per_s <= self.ceiling_per_s * LOWEST_SHARE
            )
        upper = self.ceiling_per_s if self.not_met_per_s is None else self.not_met_per_s
        return upper <= self.met_per_s * (1 + self.precision)

    @property
    def next_rate_per_s(self) -> float:
        """Return the rate to try: half the ceiling first, then the middle of what is left."""
        assert self.ceiling_per_s is not None
        upper = self.ceiling_per_s if self.not_met_per_s is None else self.not_met_per_s
        return (upper + (self.met_per_s or 0.0)) / 2


def is_search(serving: ServingConfig) -> bool:
    """Say whether a recipe asks for the highest rate instead of naming one."""
    return serving.scenario == "server" and serving.rate_per_s is None


def next_cases(config: RunConfig, results: Sequence[CaseRecords]) -> list[Case]:
    """Return the launches that come next: each point once, the highest rate `run.repeats` times.

    Raises:
        UsageError: the recipe cannot be run.
    """
    launched = {launch_key(records.case) for records in results}
    cases = [
        _case(config, point, replicate)
        for point in next_points(config, results)
        for replicate in range(config.run.repeats if point.is_repeated else 1)
    ]
    return [case for case in cases if launch_key(case) not in launched]


def _case(config: RunConfig, point: Point, replicate: int) -> Case:
    serving = config.serving
    whole = config.model_copy(
        update={"data": config.data.model_copy(update={"batch_size": serving.max_batch})}
    )
    case = case_of(whole, replicate, case_id=point.case_id, is_sweep=is_search(serving))
    return replace(case, serving=serving_spec(serving, point, text=text_of(config)))


def next_points(config: RunConfig, launched: Sequence[CaseRecords]) -> list[Point]:
    """Return what to launch next; nothing when the suite is finished or cannot go on."""
    serving = config.serving
    if not is_search(serving):
        rate_per_s = serving.rate_per_s if serving.scenario == "server" else None
        return [Point(case_id=CASE_ID, scenario=serving.scenario, rate_per_s=rate_per_s, is_repeated=True)]
    found = [served for records in launched if (served := served_of(records)) is not None]
    search = search_so_far(found, precision=serving.search_precision)
    if search.ceiling_per_s is None:
        return [Point(case_id=OFFLINE, scenario="offline")]
    if not search.is_finished:
        return [_at(search.next_rate_per_s)]
    if search.met_per_s is None:
        return []
    top = replace(_at(search.met_per_s), is_repeated=True)
    return [top, *([_at(rate) for rate in _curve(search.met_per_s, found)] if serving.curve else [])]


def search_so_far(found: Sequence[Served], *, precision: float) -> Search:
    """Read from the launches that ended how far the search is."""
    offline = [served.requests_per_s for served in found if served.window.scenario == "offline"]
    met: list[float] = []
    not_met: list[float] = []
    for served in found:
        verdict, rate = served.verdict, served.window.offered_per_s
        if verdict is not None and rate is not None:
            (met if verdict.outcome == "met" else not_met).append(rate)
    lowest = min(not_met, default=None)
    below = [rate for rate in met if lowest is None or rate < lowest]
    return Search(
        ceiling_per_s=offline[0] if offline else None,
        met_per_s=max(below, default=None),
        not_met_per_s=lowest,
        precision=precision,
    )


def _curve(top_per_s: float, found: Sequence[Served]) -> list[float]:
    measured = [served.window.offered_per_s for served in found if served.window.offered_per_s]
    wanted = (top_per_s * part for part in CURVE_SHARES)
    return [rate for rate in wanted if all(abs(rate - have) > NEAR * rate for have in measured)]


def _at(rate_per_s: float) -> Point:
    return Point(case_id=f"rate-{rate_per_s:010.3f}", scenario="server", rate_per_s=rate_per_s)


def serving_spec(serving: ServingConfig, point: Point, *, text: TextSizes | None = None) -> ServingSpec:
    """Return what the case of a point is asked."""
    endpoint = serving.endpoint
    has_endpoint = serving.target == "endpoint"
    return ServingSpec(
        target=serving.target,
        scenario=point.scenario,
        arrivals=serving.arrivals,
        rate_per_s=point.rate_per_s,
        concurrency=serving.concurrency,
        samples_per_request=serving.samples_per_request,
        max_batch=serving.max_batch,
        max_wait_s=serving.max_wait_s,
        min_requests=serving.min_requests,
        window_s=serving.window_s,
        latency_bound_s=serving.latency_bound_s if point.scenario == "server" else None,
        latency_percentile=serving.latency_percentile,
        prompt_tokens=None if text is None else text.prompt_tokens,
        new_tokens=None if text is None else text.new_tokens,
        endpoint=EndpointSpec(
            url=endpoint.url,
            model=endpoint.model,
            api_key_variable=endpoint.api_key_variable,
            timeout_s=endpoint.timeout_s,
            max_connections=endpoint.max_connections,
        )
        if endpoint.url is not None and endpoint.model is not None and has_endpoint
        else None,
    )
