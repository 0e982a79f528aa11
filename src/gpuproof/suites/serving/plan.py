"""The suite of kind `serving`: one scenario, or the search for the highest rate within its bounds.

`search.py` decides what the search launches next; this module turns it into a case, and each launch draws its
arrivals from its own seed. Requests are prompts if text is generated, else whole samples. An endpoint always
generates text; one of gpuproof's models does if it has a key-value cache, unless `serving.new_tokens` is 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from gpuproof.config.models import RunConfig
from gpuproof.launches.bounds import bounds_judged
from gpuproof.launches.served import summarize_requests
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.work.serving import NEW_TOKENS, PROMPT_TOKENS, BoundsSpec, Scenario, ServingSpec
from gpuproof.suites.base import HostPlace, LaunchKey, launch_key
from gpuproof.suites.cases import build_case
from gpuproof.suites.serving.search import Effort, Rates, RateSearch, Trial, judge_rates
from gpuproof.workloads.info.lookup import find_workload

CASE_ID = "main"
OFFLINE = "offline"
MIN_CONFIRMATIONS = 3
STARTING_S = 5.0
"""Approximate maximum time that a launch takes before its first record and after its last."""
CURVE_SHARES = (0.1, 0.25, 0.5, 0.75)
"""Points of the curve below the highest rate, as fractions of that rate."""
NEAR = 0.05
"""A point of the curve is not measured again if it is this close to a measured one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The next launch: a name, and the scenario with its rate."""

    case_id: str
    scenario: Scenario
    rate_per_s: float | None = None
    is_repeated: bool = False
    replicate: int = 0
    num_requests: int | None = None
    """Number of requests in one launch of the search; None to use the recipe's value."""


def is_search(serving: ServingSpec) -> bool:
    """Report whether a recipe asks for the highest rate instead of specifying one."""
    return serving.scenario == "server" and serving.rate_per_s is None and serving.arrivals != "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """The progress of a serving run."""

    config: RunConfig
    trials: tuple[Trial, ...] = ()
    rates: Rates = field(default_factory=dict)
    """The combined result of the launches at each rate."""
    launched: frozenset[LaunchKey] = frozenset()
    used_s: float = 0.0
    """The total time of the launches."""
    beside_s: float = STARTING_S
    """The longest time that a launch took beyond its arrival period."""

    def settle(self, launch: CaseRecords) -> ServingPlan:
        """Return the plan after a launch ended."""
        served, launched = summarize_requests(launch), self.launched | {launch_key(launch.case)}
        took_s = STARTING_S + (launch.taken_s or 0.0)
        after = replace(self, launched=launched, used_s=self.used_s + took_s)
        if served is None:
            return after
        offered = served.window.offered_per_s
        arrivals_s = served.window.num_requests / offered if offered else served.window.wall_s
        beside_s = took_s - arrivals_s
        trials = (*self.trials, Trial.of(served))
        of_rate = [one for one in trials if one.offered_per_s == served.window.offered_per_s]
        rates = judge_rates(
            of_rate,
            bounds_judged(served.spec),
            confirmations=confirmations(self.config),
            client_per_s=self.client_per_s if is_search(self.config.serving) else inf,
        )
        merged = dict(sorted({**self.rates, **rates}.items()))
        return replace(after, trials=trials, rates=merged, beside_s=max(self.beside_s, beside_s))

    @property
    def client_per_s(self) -> float:
        """Return the rate up to which the client is not the bottleneck; infinite if it was not tested."""
        return min((trial.client.rate_per_s for trial in self.trials if trial.client), default=inf)

    @property
    def search(self) -> RateSearch | None:
        """Return the progress of the search; None if the recipe does not search."""
        serving = self.config.serving
        if not is_search(serving):
            return None
        offline = [trial.requests_per_s for trial in self.trials if trial.scenario == "offline"]
        return RateSearch(
            ceiling_per_s=offline[0] if offline else None,
            rates=self.rates,
            precision=serving.search_precision,
            effort=Effort(
                confirmations=confirmations(self.config),
                min_requests=serving.min_requests,
                window_s=serving.window_s,
                time_at_a_rate_s=serving.time_at_a_rate_s,
            ),
            time_left_s=serving.search_time_s - self.used_s,
            beside_s=self.beside_s,
            lowest_per_s=serving.search_lowest_per_s or 0.0,
            client_per_s=self.client_per_s,
        )

    @property
    def num_left(self) -> int:
        """Number of launches known to be pending."""
        return len(self.left())

    @property
    def seconds_left(self) -> float | None:
        """Return the maximum time left for a search, the approximate time for a rate's launches, or None."""
        serving, left = self.config.serving, self.num_left
        if is_search(serving):
            return max(0.0, serving.search_time_s - self.used_s) if left else 0.0
        if serving.scenario != "server":
            return None
        if serving.rate_per_s is None:
            return left * (serving.window_s + self.beside_s)
        arrivals_s = max(serving.window_s, serving.min_requests / serving.rate_per_s)
        return left * (arrivals_s + self.beside_s)

    def left(self) -> list[tuple[Load, int]]:
        """Return the next known launches; for a search only one, since its result determines the next."""
        loads = next_loads(self.config.serving, self.trials, self.search)
        return [
            (load, replicate)
            for load in loads
            for replicate in (range(self.config.run.repeats) if load.is_repeated else [load.replicate])
            if (load.case_id, replicate) not in self.launched
        ]

    def next(self, running: Collection[LaunchKey]) -> Iterator[Case]:
        """Yield the launches that may start now; a search waits for running launches.

        Raises:
            UsageError: the recipe cannot run.
        """
        for load, replicate in self.left():
            if (load.case_id, replicate) not in running:
                yield case_of_load(self.config, load, replicate)


def case_of_load(config: RunConfig, load: Load, replicate: int, *, case_id: str | None = None) -> Case:
    """Return a launch with this load; if `case_id` is None, the load's own name is used.

    Raises:
        UsageError: the recipe cannot run.
    """
    serving, data = config.serving, config.data
    whole = config.model_copy(update={"data": replace(data, batch_size=serving.max_batch)})
    return build_case(
        whole,
        replicate,
        case_id=case_id or load.case_id,
        serving=spec_of_load(serving, load, text=text_sizes(config)),
        arrival_seed=arrival_seed(config.training.seed, load.case_id, replicate),
    )


def load_of(serving: ServingSpec) -> Load:
    """Return the single load of a recipe that does not search for a rate."""
    rate_per_s = serving.rate_per_s if serving.scenario == "server" else None
    return Load(case_id=CASE_ID, scenario=serving.scenario, rate_per_s=rate_per_s, is_repeated=True)


def arrival_seed(seed: int, case_id: str, replicate: int) -> int:
    """Return the seed of a launch's arrivals: reproducible, but different for every launch of a run."""
    return zlib.crc32(f"{seed}/{case_id}/{replicate}".encode())


def next_loads(serving: ServingSpec, trials: Sequence[Trial], search: RateSearch | None) -> list[Load]:
    """Return what to launch next; nothing if the suite is finished or cannot continue."""
    if search is None:
        return [load_of(serving)]
    if search.ceiling_per_s is None:
        return [Load(case_id=OFFLINE, scenario="offline")]
    if search.next_launch is not None:
        rate_per_s, num_requests = search.next_launch
        begun = sum(trial.offered_per_s == rate_per_s for trial in trials)
        return [replace(_at(rate_per_s), replicate=begun, num_requests=num_requests)]
    if search.met_per_s is None or not serving.curve:
        return []
    return _loads_in_time(_curve(search.met_per_s, trials), search)


def confirmations(config: RunConfig) -> int:
    """Return the minimum number of launches needed to confirm a rate."""
    return max(MIN_CONFIRMATIONS, config.run.repeats)


def _curve(top_per_s: float, trials: Sequence[Trial]) -> list[float]:
    measured = [trial.offered_per_s for trial in trials if trial.offered_per_s]
    wanted = (top_per_s * part for part in CURVE_SHARES)
    return [rate for rate in wanted if all(abs(rate - have) > NEAR * rate for have in measured)]


def _loads_in_time(rates: Sequence[float], search: RateSearch) -> list[Load]:
    """Return the curve points that fit in the available time; high rates need the least time."""
    chosen: list[float] = []
    for rate in sorted(rates, reverse=True):
        num_requests = search.effort.first_requests(rate)
        if search.fits(rate, num_requests):
            taken_s = num_requests / rate + search.beside_s
            search = replace(search, time_left_s=search.time_left_s - taken_s)
            chosen.append(rate)
    return [_at(rate) for rate in sorted(chosen)]


def _at(rate_per_s: float) -> Load:
    return Load(case_id=f"rate-{rate_per_s:010.3f}", scenario="server", rate_per_s=rate_per_s)


def spec_of_load(serving: ServingSpec, load: Load, *, text: TextSizes | None = None) -> ServingSpec:
    """Return the recipe's block for the case of a load; bounds apply only to schedules."""
    is_server = load.scenario == "server"
    return replace(
        serving,
        scenario=load.scenario,
        rate_per_s=load.rate_per_s,
        min_requests=load.num_requests or serving.min_requests,
        latency_bound_s=serving.latency_bound_s if is_server else None,
        prompt_tokens=None if text is None else text.prompt_tokens,
        new_tokens=None if text is None else text.new_tokens,
        bounds=serving.bounds if is_server else BoundsSpec(),
    )


def begin(config: RunConfig, _places: Sequence[HostPlace]) -> ServingPlan:
    """Start with the scenario, or, for a search, with the offline rate.

    Raises:
        UsageError: the scenario cannot run.
    """
    plan = ServingPlan(config=config)
    next(plan.next(()))  # rejects a recipe that cannot run here
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSizes:
    """Number of tokens in each prompt, and in each answer."""

    prompt_tokens: int
    new_tokens: int


def text_sizes(config: RunConfig) -> TextSizes | None:
    """Return the sizes of prompts and responses; None if there are none."""
    serving = config.serving
    sizes = TextSizes(
        prompt_tokens=serving.prompt_tokens or PROMPT_TOKENS,
        new_tokens=NEW_TOKENS if serving.new_tokens is None else serving.new_tokens,
    )
    if serving.target == "endpoint":
        return sizes
    if serving.target == "noop" or serving.new_tokens == 0:
        return None
    return sizes if find_workload(config.model.name).generation is not None else None
