"""What every suite keeps, on this machine and around each of several hosts: planning and conclusions."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from collectives_by_hand import collective_records
from gpuproof.base import registry
from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.case import Case
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.records.run import FailureCause
from gpuproof.report.markdown import markdown
from gpuproof.suites.base import AfterFailure, Conclusion, HostPlace, LaunchKey, Suite, launch_key
from gpuproof.suites.by_host import ByHost
from gpuproof.suites.registry import OURS, find_suite, load_suite, suite_on
from planning import HERE
from probes_by_hand import probe_records
from records_by_hand import ITEMS_PER_STEP, NUM_STEPS, Story, description, failure, setup, start, window
from served_by_hand import answered

HOSTS = (HostPlace(name="n 0", num_devices=2), HostPlace(name="n 1"), HostPlace(name="n 2"))
LONGEST = 1000
"""Launches of a walk; no suite under test needs as many."""
BASE: Mapping[str, Any] = {"model": {"name": "medium"}, "training": {"precision": "fp32"}}


def recipe(**sections: Any) -> RunConfig:
    return RunConfig.model_validate({**BASE, **sections})


SHORT_SEARCH = {"latency_bound_s": 0.05, "search_precision": 0.3, "time_at_a_rate_s": 60.0}


def serving(**keys: Any) -> RunConfig:
    return recipe(kind="serving", serving=SHORT_SEARCH | keys, run={"repeats": 2})


def of_another_model(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"model": replace(config.model, name="medum")})


def of_tokens(config: RunConfig) -> RunConfig:
    """Give models of samples a file of tokens."""
    data = replace(config.data, name="tokens", path="ids.bin")
    return config.model_copy(update={"data": data})


@dataclass(frozen=True, kw_only=True)
class Member:
    """A suite under test, with recipes of its own and recipes that it cannot run."""

    suite: str
    config: RunConfig
    bad: Sequence[RunConfig]
    num_launches: int | None = None
    """Where it is known from the beginning."""
    has_host_form: bool = True
    """Whether several hosts of it are concluded; where they are not, the command refuses them."""
    judges: bool = False
    """Whether its verdict is of readiness, which nothing that was measured alone amounts to."""
    ends_with: ExitCode = ExitCode.DONE
    """Where all launches are done, and like each other in every digit."""
    takes_hosts: bool = True
    """Whether it plans for named hosts at all."""


SWEEP = recipe(matrix={"data.batch_size": [2, 4, 8]}, run={"repeats": 2})
RECIPE = recipe(run={"repeats": 3})
SEARCH = recipe(search={"kind": "batch_size", "start": 16, "up_to": 128}, run={"repeats": 2})
LOAD = load_config("load").config
COLLECTIVE = RunConfig.model_validate(
    {"kind": "collective", "distributed": {"nproc": 2}, "run": {"repeats": 2}}
)
"""Whatever it asks for is refused when it is read: it names no workload."""
PROBE = RunConfig.model_validate({"kind": "probe", "run": {"repeats": 2}})
SCALE = recipe(suite="scale", scale={"batch_sizes": [16], "num_devices": [1, 2]}, run={"repeats": 2})
"""One device once, and two by both laws."""
VALIDATE = recipe(
    suite="validate",
    validate={"stages": ["collective", "training"]},
    data={"name": "synthetic", "batch_size": 8},
    distributed={"nproc": 2},
    run={"repeats": 2},
)
"""Collectives on two devices, training on one and on two."""
AB = recipe(
    suite="ab",
    ab={"b": {"data.batch_size": 8}, "max_regression": 0.0, "pilot_pairs": 3, "max_pairs": 5},
    data={"batch_size": 16},
)
MATRIX = recipe(
    suite="matrix", matrix={"data.batch_size": [2, 4, 8]}, cases={"parallel": 6}, run={"repeats": 2}
)
MEMBERS = {
    "recipe": Member(
        suite="recipe",
        config=RECIPE,
        bad=[
            of_another_model(RECIPE),
            of_tokens(RECIPE),
            recipe(model={"name": "medium", "options": {"a": 1}}),
        ],
        num_launches=3,
    ),
    "inference": Member(
        suite="recipe", config=recipe(kind="inference"), bad=[of_tokens(recipe(kind="inference"))]
    ),
    "sweep": Member(
        suite="sweep",
        config=SWEEP,
        bad=[
            of_another_model(SWEEP),
            recipe(matrix={"data.batch_size": [8, 0]}),
            recipe(matrix={"model.name": ["medium", "medum"]}),
        ],
        num_launches=6,
    ),
    "batch_limit": Member(
        suite="batch_limit", config=SEARCH, bad=[of_another_model(SEARCH)], has_host_form=False
    ),
    "load": Member(suite="load", config=LOAD, bad=[of_tokens(LOAD)], num_launches=12),
    "serving": Member(
        suite="serving",
        config=serving(rate_per_s=100.0),
        bad=[of_another_model(serving(rate_per_s=100.0)), of_another_model(serving())],
        num_launches=2,
        has_host_form=False,
    ),
    "serving search": Member(
        suite="serving", config=serving(), bad=[of_another_model(serving())], has_host_form=False
    ),
    "scale": Member(
        suite="scale",
        config=SCALE,
        bad=[of_another_model(SCALE)],
        num_launches=6,
        has_host_form=False,
        takes_hosts=False,
    ),
    "validate": Member(
        suite="validate",
        config=VALIDATE,
        bad=[of_another_model(VALIDATE)],
        num_launches=6,
        has_host_form=False,
        takes_hosts=False,
        judges=True,
        ends_with=ExitCode.INCONCLUSIVE,
    ),
    "ab": Member(
        suite="ab",
        config=AB,
        bad=[of_another_model(AB)],
        num_launches=None,
        has_host_form=False,
        takes_hosts=False,
        ends_with=ExitCode.INCONCLUSIVE,  # launches like each other in every digit are copies
    ),
    "probe": Member(
        suite="probe", config=PROBE, bad=[], num_launches=2, has_host_form=False, takes_hosts=False
    ),
    "collective": Member(suite="collective", config=COLLECTIVE, bad=[], num_launches=2, has_host_form=False),
    "matrix": Member(
        suite="matrix",
        config=MATRIX,
        bad=[of_another_model(MATRIX)],
        num_launches=6,
        has_host_form=False,
        takes_hosts=False,
    ),
}


@dataclass(frozen=True, kw_only=True)
class UnderTest:
    """A suite with a recipe, where it runs."""

    member: Member
    suite: Suite
    places: tuple[HostPlace, ...]

    @property
    def config(self) -> RunConfig:
        return self.member.config

    @property
    def num_launches(self) -> int | None:
        found = self.member.num_launches
        return None if found is None else found * len(self.places)

    def begin(self) -> Any:
        return self.suite.begin(self.config, self.places)

    def asked(self, state: Any, running: Mapping[LaunchKey, Case] | None = None) -> list[Case]:
        return list(self.suite.next(state, running or {}, None))

    def replayed(self, launches: Sequence[CaseRecords]) -> Any:
        state = self.begin()
        for launch in launches:
            state = self.suite.settle(state, launch)
        return state

    def evidence(self, launches: Sequence[CaseRecords], folder: Path) -> Evidence:
        hosts = tuple({"name": place.name, "gpus": place.num_devices} for place in self.places if place.name)
        told = {**description(), "config": self.config.model_dump(mode="json")}
        return Evidence(
            description={**told, "fleet": {"hosts": hosts, "currency": "USD"}} if hosts else told,
            config=self.config,
            launches=tuple(launches),
            hosts=hosts,
            recording_at=lambda _case, _host: None,
            folder_of=lambda _case: folder,
        )


def here_or_by_host(param: tuple[str, str]) -> UnderTest:
    name, where = param
    member, is_here = MEMBERS[name], where == "here"
    places = HERE if is_here else HOSTS
    suite = suite_on(member.config, places)
    assert isinstance(suite, ByHost) is not is_here
    return UnderTest(member=member, suite=suite, places=places)


EVERYWHERE = [
    (name, where)
    for name, member in MEMBERS.items()
    for where in ("here", "by host")
    if where == "here" or member.takes_hosts
]


@pytest.fixture(params=EVERYWHERE, ids=", ".join)
def under_test(request: pytest.FixtureRequest) -> UnderTest:
    return here_or_by_host(request.param)


@pytest.fixture(
    params=[(name, where) for name, where in EVERYWHERE if where == "here" or MEMBERS[name].has_host_form],
    ids=", ".join,
)
def concluding(request: pytest.FixtureRequest) -> UnderTest:
    return here_or_by_host(request.param)


@pytest.fixture
def without_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no workload be found, as where its package was uninstalled since."""
    load = registry.load

    def refuse(group: str, name: str) -> Any:
        if group == registry.WORKLOADS:
            raise AssertionError(f"the workload {name} was looked up")
        return load(group, name)

    monkeypatch.setattr(registry, "load", refuse)


Ending = Callable[[Case], CaseRecords]


def done(case: Case) -> CaseRecords:
    """A launch that ended well; a server does 1,000 requests a second, and meets its bound up to 700."""
    if case.kind == "serving":
        return answered(case, offline_per_s=1000.0, highest_per_s=700.0)
    if case.kind == "collective":
        return collective_records(case)
    if case.kind == "probe":
        return probe_records(case)
    data = case.model_work.data
    ranks = range(case.placement.num_ranks)
    windows = [replace(window(rank), items=NUM_STEPS * data.batch_size) for rank in ranks]
    setups = [setup(rank, items_per_step=data.batch_size, data=data.name) for rank in ranks]
    assert data.batch_size != ITEMS_PER_STEP
    return Story(case=case, windows=windows, setups=setups).records()


def failed(cause: FailureCause, *, phase: str = "measure") -> Ending:
    def end(case: Case) -> CaseRecords:
        told = failure(cause, phase=phase, host=case.placement.host or "node1")
        return CaseRecords(case=case, records=(start(), told))

    return end


def unsaid(case: Case) -> CaseRecords:
    """A launch that was killed without a message."""
    return CaseRecords(case=case, records=(start(),))


def lost(case: Case) -> CaseRecords:
    """A launch whose host could not be reached."""
    told = failure("lost_rank", rank=None, phase="setup", host=case.placement.host or "node1")
    return CaseRecords(case=case, records=(told,))


@dataclass
class Walk:
    """A run from its begin to its end, several launches at once, ending in any order."""

    of: UnderTest
    seed: int
    endings: Sequence[Ending] = (done,)
    most_running: int = 1
    settled: list[CaseRecords] = field(default_factory=list)
    state: Any = None

    def run(self, each: Callable[[Any, Mapping[LaunchKey, Case]], None] = lambda _s, _r: None) -> Walk:
        """Go on until nothing runs and nothing is asked for; `each` sees every state with what runs."""
        draw = random.Random(self.seed)
        self.state = self.of.begin()
        running: dict[LaunchKey, Case] = {}
        known: set[LaunchKey] = set()
        while True:
            for case in self.of.suite.next(self.state, dict(running), None):
                if len(running) >= self.most_running:
                    break
                key = launch_key(case)
                assert key not in known, "a launch that is settled or runs is asked for again"
                known.add(key)
                running[key] = case
            each(self.state, running)
            if not running:
                return self
            ended = draw.choice(self.endings)(running.pop(draw.choice(sorted(running))))
            self.settled.append(ended)
            self.state = self.of.suite.settle(self.state, ended)
            assert len(self.settled) < LONGEST, "the run does not end"


ANY_END: tuple[Ending, ...] = (
    *(done,) * 6,
    failed("out_of_memory"),
    failed("exception"),
    failed("environment"),
    unsaid,
    lost,
)
SEEDS = range(4)


def test_every_suite_of_ours_is_under_test() -> None:
    ours = {entry.name for entry in registry.registered(registry.SUITES) if entry.distribution == OURS}
    assert ours == {member.suite for member in MEMBERS.values()}


def test_it_says_what_it_is(under_test: UnderTest) -> None:
    suite = under_test.suite
    assert isinstance(suite, Suite)
    assert suite.name == under_test.member.suite == find_suite(under_test.config).name
    assert suite.summary
    assert "\n" not in suite.summary
    assert suite.command in ("run", "load", "scale", "validate", "compare", "matrix")
    assert suite.scope in ("each_host", "whole")
    assert suite.options is None or dataclasses.is_dataclass(suite.options)


def test_one_suite_of_ours_answers_a_recipe(under_test: UnderTest) -> None:
    if under_test.config.suite is not None:
        return  # it is named, and nobody is asked
    suites = [load_suite(name) for name in {member.suite for member in MEMBERS.values()}]
    assert [suite.name for suite in suites if suite.answers(under_test.config)] == [under_test.member.suite]


def test_a_recipe_that_cannot_be_run_is_refused_at_the_begin(under_test: UnderTest) -> None:
    for bad in under_test.member.bad:
        with pytest.raises(UsageError) as caught:
            under_test.suite.begin(bad, under_test.places)
        assert caught.value.cause


def test_a_case_is_built_when_it_is_asked_for(under_test: UnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    state = under_test.begin()
    built: list[str] = []
    make = Case.__init__

    def counted(case: Case, **values: Any) -> None:
        built.append(values["case_id"])
        make(case, **values)

    monkeypatch.setattr(Case, "__init__", counted)
    asked = under_test.suite.next(state, {}, None)
    assert built == []
    counts = []
    for case in asked:
        assert case.case_id.startswith(built[0])
        counts.append(len(built))
        built.clear()
    assert counts
    # The recipe as a case, then what is special to the launch, its host, and whether it describes that.
    assert max(counts) <= 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("most_running", [1, 3])
def test_it_ends_in_whatever_order_launches_do(under_test: UnderTest, seed: int, most_running: int) -> None:
    keys: list[LaunchKey] = []

    def check(state: Any, running: Mapping[LaunchKey, Case]) -> None:
        asked = [launch_key(case) for case in under_test.asked(state, running)]
        assert len(set(asked)) == len(asked)
        assert not set(asked) & set(running)
        keys[:] = asked

    walk = Walk(under_test, seed, endings=ANY_END, most_running=most_running).run(check)
    assert keys == []
    settled = [launch_key(launch.case) for launch in walk.settled]
    assert len(set(settled)) == len(settled) > 0


@pytest.mark.parametrize(("endings", "most_running"), [((done,), 2), (ANY_END, 1)], ids=["done", "any end"])
def test_what_remains_agrees_with_what_is_asked_for(
    under_test: UnderTest, endings: Sequence[Ending], most_running: int
) -> None:
    left: list[int] = []

    def check(state: Any, running: Mapping[LaunchKey, Case]) -> None:
        remaining = under_test.suite.remaining(state)
        unsettled = {*running, *(launch_key(case) for case in under_test.asked(state, running))}
        assert remaining.num_launches >= len(unsettled)
        assert (remaining.num_launches == 0) == (not unsettled)
        assert remaining.seconds is None or remaining.seconds >= 0
        left.append(remaining.num_launches)

    walk = Walk(under_test, 1, endings=endings, most_running=most_running).run(check)
    if under_test.num_launches is not None and endings == (done,):
        assert left == list(range(under_test.num_launches, -1, -1))
        assert len(walk.settled) == under_test.num_launches


def test_a_state_is_left_as_it_is(under_test: UnderTest) -> None:
    seen: list[tuple[Any, str, list[Case]]] = []
    Walk(under_test, 2, endings=ANY_END, most_running=2).run(
        lambda state, _running: seen.append((state, repr(state), under_test.asked(state)))
    )
    for state, text, asked in seen:
        assert repr(state) == text
        assert under_test.asked(state) == asked
        assert dataclasses.is_dataclass(state)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(state, dataclasses.fields(state)[0].name, None)


@pytest.mark.parametrize("seed", SEEDS)
def test_launches_that_are_settled_again_lead_to_the_same_cases(under_test: UnderTest, seed: int) -> None:
    walk = Walk(under_test, seed, endings=ANY_END, most_running=3).run()
    for num_settled in range(0, len(walk.settled) + 1, max(1, len(walk.settled) // 5)):
        before = walk.settled[:num_settled]
        on_disk = sorted(before, key=lambda launch: launch_key(launch.case))  # as a resumed run reads them
        asked = under_test.asked(under_test.replayed(before))
        assert under_test.asked(under_test.replayed(on_disk)) == asked
        assert under_test.asked(under_test.replayed(on_disk[::-1])) == asked
    assert under_test.asked(under_test.replayed(walk.settled)) == []


def test_a_launch_of_another_run_changes_nothing_that_is_asked_for(under_test: UnderTest) -> None:
    state = under_test.begin()
    (first, *_) = under_test.asked(state)
    stranger = replace(first, case_id=f"stranger@{first.placement.host}", replicate=77)
    if under_test.num_launches is not None:
        settled = under_test.suite.settle(state, unsaid(stranger))
        assert under_test.asked(settled) == under_test.asked(state)


def test_every_failure_has_a_meaning(under_test: UnderTest) -> None:
    (case, *_) = under_test.asked(under_test.begin())
    for cause in get_args(FailureCause):
        meaning = under_test.suite.on_failure(failed(cause)(case))
        assert meaning in get_args(AfterFailure)
        assert under_test.suite.on_failure(failed(cause)(case)) == meaning
    full = under_test.suite.on_failure(failed("disk_full")(case))
    assert full == ("skip" if isinstance(under_test.suite, ByHost) else "stop")
    assert under_test.suite.on_failure(unsaid(case)) == "skip"


def test_on_hosts_each_has_its_own_cases_and_one_that_is_lost_is_asked_nothing_more() -> None:
    for name, member in MEMBERS.items():
        if not member.takes_hosts:
            continue
        by_host = UnderTest(member=member, suite=suite_on(member.config, HOSTS), places=HOSTS)
        asked = by_host.asked(by_host.begin())
        assert [case.placement.hosts for case in asked] == [(place.name,) for place in HOSTS], name
        assert asked[0].placement.ranks_per_host == 2
        state = by_host.suite.settle(by_host.begin(), lost(asked[1]))
        assert [case.placement.host for case in by_host.asked(state)] == ["n 0", "n 2"]
        running = {launch_key(asked[0]): asked[0]}
        assert [case.placement.host for case in by_host.asked(state, running)] == ["n 2"]


def concluded(concluding: UnderTest, launches: Sequence[CaseRecords], folder: Path) -> Conclusion:
    """Conclude, read the result back from its file's text, and draw both."""
    conclusion = concluding.suite.conclude(concluding.evidence(launches, folder))
    result = conclusion.result
    text = json.dumps(to_json(result), allow_nan=False)
    read = from_json(Result, json.loads(text))
    page = concluding.suite.page(read)
    assert isinstance(page, Page)
    assert markdown(page) == markdown(concluding.suite.page(result))
    assert result.suite == concluding.member.suite
    assert result.num_planned >= result.num_launches
    names = [export.name for export in conclusion.exports]
    assert len(set(names)) == len(names)
    for export in conclusion.exports:
        assert not Path(export.name).is_absolute()
        assert ".." not in Path(export.name).parts
    return conclusion


@pytest.mark.usefixtures("without_workloads")
def test_no_launches_come_to_nothing_measured(concluding: UnderTest, tmp_path: Path) -> None:
    result = concluded(concluding, [], tmp_path).result
    nothing = "INCONCLUSIVE" if concluding.member.judges else "NOTHING MEASURED"
    assert (result.validity, result.verdict, result.num_launches) == (None, nothing, 0)
    assert result.exit_code == ExitCode.INCONCLUSIVE
    assert not result.failures


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        ("exception", ExitCode.FAILED),
        ("environment", ExitCode.UNFIT_ENVIRONMENT),
        ("interrupted", ExitCode.INTERRUPTED),
    ],
)
def test_failures_only_are_told(
    concluding: UnderTest, cause: FailureCause, code: ExitCode, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    walk = Walk(concluding, 0, endings=(failed(cause),)).run()
    request.getfixturevalue("without_workloads")
    result = concluded(concluding, walk.settled, tmp_path).result
    assert (result.validity, result.num_launches, result.exit_code) == (None, 0, code)
    assert {told.cause for told in result.failures} == {cause}


def test_launches_that_are_done_are_measured(
    concluding: UnderTest, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    walk = Walk(concluding, 0).run()
    request.getfixturevalue("without_workloads")
    result = concluded(concluding, walk.settled, tmp_path).result
    assert result.num_launches == result.num_planned == len(walk.settled)
    assert result.exit_code == concluding.member.ends_with
    assert result.validity in ("VALID", "SUSPECT")
    assert any(measure.value is not None for measure in result.measures)
    assert not result.failures


def test_some_of_each_are_told_side_by_side(
    concluding: UnderTest, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    for seed in SEEDS:
        walk = Walk(concluding, seed, endings=ANY_END).run()
        num_done = sum(launch.status == "done" for launch in walk.settled)
        assert concluded(concluding, walk.settled, tmp_path).result.num_launches == num_done
