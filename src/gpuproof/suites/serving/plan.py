"""The suite of kind `serving`: one scenario, or the search for the highest rate that meets a latency bound.

The search guesses no rate: an offline launch gives what the server can do at all, and halving the distance
between the highest rate that met the bound and the lowest that did not closes in on the answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuproof.analysis.loadgen import BoundOutcome
from gpuproof.analysis.serving import Served, summarize_requests
from gpuproof.config.models import RunConfig
from gpuproof.config.sections.serving import ServingConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.serving_spec import EndpointSpec, Scenario, ServingSpec
from gpuproof.suites.base import LaunchKey, launch_key
from gpuproof.suites.cases import build_case
from gpuproof.suites.serving.text import TextSizes, text_sizes

CASE_ID = "main"
OFFLINE = "offline"
LOWEST_SHARE = 1 / 64
"""Of the offline rate: where even this misses the bound, no rate is said to meet it."""
CURVE_SHARES = (0.1, 0.25, 0.5, 0.75)
"""Of the highest rate: the points of the curve below it."""
NEAR = 0.05
"""A point of the curve this near to a measured one is not measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to launch next: a name, and the scenario with its rate."""

    case_id: str
    scenario: Scenario
    rate_per_s: float | None = None
    is_repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSearch:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a launch that ended says for the search."""

    scenario: Scenario
    requests_per_s: float
    offered_per_s: float | None
    outcome: BoundOutcome | None
    """Whether the bound was met; None where none was set."""

    @classmethod
    def of(cls, served: Served) -> Trial:
        """Read it from the figures of a window."""
        return cls(
            scenario=served.window.scenario,
            requests_per_s=served.requests_per_s,
            offered_per_s=served.window.offered_per_s,
            outcome=None if served.verdict is None else served.verdict.outcome,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """How far a serving run is."""

    config: RunConfig
    trials: tuple[Trial, ...] = ()
    launched: frozenset[LaunchKey] = frozenset()

    def settle(self, launch: CaseRecords) -> ServingPlan:
        """Return the plan after a launch ended."""
        served = summarize_requests(launch)
        return replace(
            self,
            trials=self.trials if served is None else (*self.trials, Trial.of(served)),
            launched=self.launched | {launch_key(launch.case)},
        )

    @property
    def num_left(self) -> int:
        """Launches that are known to be still to do."""
        return len(self.left())

    def left(self) -> list[tuple[Load, int]]:
        """Return what is known to be launched: each point once, the highest rate `run.repeats` times."""
        return [
            (load, replicate)
            for load in next_loads(self.config.serving, self.trials)
            for replicate in range(self.config.run.repeats if load.is_repeated else 1)
            if (load.case_id, replicate) not in self.launched
        ]

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield what may begin now; a search waits for what runs.

        Raises:
            UsageError: the recipe cannot be run.
        """
        for load, replicate in self.left():
            if (load.case_id, replicate) not in running:
                yield self._case(load, replicate)

    def _case(self, load: Load, replicate: int) -> Case:
        serving, data = self.config.serving, self.config.data
        whole = self.config.model_copy(
            update={"data": data.model_copy(update={"batch_size": serving.max_batch})}
        )
        return build_case(
            whole,
            replicate,
            case_id=load.case_id,
            is_sweep=is_search(serving),
            serving=serving_spec(serving, load, text=text_sizes(self.config)),
        )


def next_loads(serving: ServingConfig, trials: Sequence[Trial]) -> list[Load]:
    """Return what to launch next; nothing when the suite is finished or cannot go on."""
    if not is_search(serving):
        rate_per_s = serving.rate_per_s if serving.scenario == "server" else None
        return [Load(case_id=CASE_ID, scenario=serving.scenario, rate_per_s=rate_per_s, is_repeated=True)]
    search = search_so_far(trials, precision=serving.search_precision)
    if search.ceiling_per_s is None:
        return [Load(case_id=OFFLINE, scenario="offline")]
    if not search.is_finished:
        return [_at(search.next_rate_per_s)]
    if search.met_per_s is None:
        return []
    top = replace(_at(search.met_per_s), is_repeated=True)
    return [top, *([_at(rate) for rate in _curve(search.met_per_s, trials)] if serving.curve else [])]


def search_so_far(trials: Sequence[Trial], *, precision: float) -> RateSearch:
    """Read from the launches that ended how far the search is."""
    offline = [trial.requests_per_s for trial in trials if trial.scenario == "offline"]
    judged = [(trial.outcome, rate) for trial in trials if trial.outcome and (rate := trial.offered_per_s)]
    lowest = min((rate for outcome, rate in judged if outcome != "met"), default=None)
    met = [rate for outcome, rate in judged if outcome == "met" and (lowest is None or rate < lowest)]
    return RateSearch(
        ceiling_per_s=offline[0] if offline else None,
        met_per_s=max(met, default=None),
        not_met_per_s=lowest,
        precision=precision,
    )


def _curve(top_per_s: float, trials: Sequence[Trial]) -> list[float]:
    measured = [trial.offered_per_s for trial in trials if trial.offered_per_s]
    wanted = (top_per_s * part for part in CURVE_SHARES)
    return [rate for rate in wanted if all(abs(rate - have) > NEAR * rate for have in measured)]


def _at(rate_per_s: float) -> Load:
    return Load(case_id=f"rate-{rate_per_s:010.3f}", scenario="server", rate_per_s=rate_per_s)


def serving_spec(serving: ServingConfig, load: Load, *, text: TextSizes | None = None) -> ServingSpec:
    """Return what the case of a load is asked."""
    endpoint = serving.endpoint
    has_endpoint = serving.target == "endpoint"
    return ServingSpec(
        target=serving.target,
        scenario=load.scenario,
        arrivals=serving.arrivals,
        rate_per_s=load.rate_per_s,
        concurrency=serving.concurrency,
        samples_per_request=serving.samples_per_request,
        max_batch=serving.max_batch,
        max_wait_s=serving.max_wait_s,
        min_requests=serving.min_requests,
        window_s=serving.window_s,
        latency_bound_s=serving.latency_bound_s if load.scenario == "server" else None,
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
