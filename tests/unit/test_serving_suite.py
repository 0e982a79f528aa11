"""The search for the highest rate, against servers whose highest rate is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from concluding import notes_of
from gpuproof.base.errors import ExitCode
from gpuproof.campaign.conclude import conclude
from gpuproof.campaign.finished import read_finished
from gpuproof.comparison.runs import compare_runs
from gpuproof.config.models import RunConfig, RunSection
from gpuproof.launches.served import summarize_requests
from gpuproof.records.case import ServingWork
from gpuproof.records.collected import CaseRecords
from gpuproof.records.serving import ServingWindow
from gpuproof.store.run import RunDirectory
from planning import HERE, next_cases, suite_of
from records_by_hand import write_run
from served_by_hand import SPEC, answered, records, spec_in


def config(**serving: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "kind": "serving",
            "serving": {"latency_bound_s": 0.05, "time_at_a_rate_s": 1.0, "window_s": 0.1, **serving},
        }
    )


def run(
    asked: RunConfig, *, offline_per_s: float, highest_per_s: float, **client: float
) -> list[CaseRecords]:
    """Launch what the suite asks for until it asks for nothing new."""
    launched: list[CaseRecords] = []
    suite = suite_of(asked)
    state = suite.begin(asked, HERE)
    while case := next(iter(suite.next(state, {}, None)), None):
        assert len(launched) < 60, "the search does not end"
        launched.append(answered(case, offline_per_s=offline_per_s, highest_per_s=highest_per_s, **client))
        state = suite.settle(state, launched[-1])
    return launched


def rates(launched: list[CaseRecords]) -> list[float]:
    specs = [spec_in(found.case) for found in launched]
    return list(dict.fromkeys(spec.rate_per_s for spec in specs if spec.rate_per_s is not None))


@pytest.mark.parametrize("highest", [37.0, 420.0, 730.0, 999.0])
def test_the_highest_rate_is_found_within_the_precision(highest: float) -> None:
    launched = run(config(curve=False), offline_per_s=1000.0, highest_per_s=highest)
    assert launched[0].case.case_id == "offline"
    met = max(rate for rate in rates(launched) if rate <= highest)
    assert highest / met <= 1.05
    assert len(rates(launched)) <= 12
    by_rate = Counter(spec_in(found.case).rate_per_s for found in launched)
    # A rate that is confirmed has three launches, one that is refuted has two.
    assert all(by_rate[rate] == (3 if rate <= highest else 2) for rate in rates(launched))
    seeds = [work.arrival_seed for found in launched if isinstance(work := found.case.work, ServingWork)]
    assert len(set(seeds)) == len(seeds)


def test_a_server_that_never_meets_the_bound_ends_the_search() -> None:
    launched = run(config(), offline_per_s=1000.0, highest_per_s=0.0)
    assert min(rates(launched)) == pytest.approx(1000 / 64)


@pytest.mark.parametrize(
    ("highest_per_s", "verdict", "reason"),
    [
        (400.0, "VALID", "no problems found"),
        (0.0, "INCONCLUSIVE", "no highest rate: refuted at 15.6 requests/s, and none is confirmed"),
    ],
)
def test_a_search_that_confirmed_no_rate_is_inconclusive(
    highest_per_s: float, verdict: str, reason: str, tmp_path: Path
) -> None:
    asked = config()
    launched = run(asked, offline_per_s=1000.0, highest_per_s=highest_per_s)
    concluded = conclude(written(tmp_path, asked, *launched))
    result, page = concluded.result, concluded.page
    assert page.verdict is not None
    assert (result.verdict, page.verdict.word) == (verdict, verdict)
    assert page.verdict.reason.startswith(reason)
    is_found = verdict == "VALID"
    assert result.exit_code == (ExitCode.DONE if is_found else ExitCode.INCONCLUSIVE)
    assert (result.validity is None, result.headline == "no highest rate") == (not is_found, not is_found)


def test_a_search_that_could_tell_of_no_rate_says_that_it_needs_time(tmp_path: Path) -> None:
    asked = config(search_time_s=0.2)
    launched = run(asked, offline_per_s=1000.0, highest_per_s=400.0)
    page = conclude(written(tmp_path, asked, *launched)).page
    assert page.verdict is not None
    assert page.verdict.reason.startswith("no highest rate: no rate was refuted, and none is confirmed: give")


ENDPOINT = {"target": "endpoint", "endpoint": {"url": "http://here:1/v1", "model": "m"}}


@pytest.mark.parametrize(
    ("client", "limit_per_s"), [({"client_per_s": 800.0}, 400.0), ({"late_from_per_s": 250.0}, 250.0)]
)
def test_a_fast_server_is_told_up_to_where_the_client_is_the_limit(
    client: dict[str, float], limit_per_s: float, tmp_path: Path
) -> None:
    asked = config(**ENDPOINT, curve=False)
    launched = run(asked, offline_per_s=1000.0, highest_per_s=999.0, **client)
    confirmed = max(rate for rate in rates(launched) if rate < limit_per_s)
    assert limit_per_s / confirmed <= 1.06
    by_rate = Counter(spec_in(one.case).rate_per_s for one in launched)
    late = [rate for rate in rates(launched) if rate >= limit_per_s]
    assert all(by_rate[rate] == 2 for rate in late)  # given up, neither confirmed nor refuted
    assert bool(late) == ("late_from_per_s" in client)
    directory = written(tmp_path, asked, *launched)
    concluded = conclude(directory)
    result, page = concluded.result, concluded.page
    assert (result.verdict, result.exit_code) == ("INCONCLUSIVE", ExitCode.INCONCLUSIVE)
    highest = result.measures[0]
    assert (highest.name, highest.value) == ("highest rate", None)
    said = f"cannot tell: client from {limit_per_s:.0f} requests/s on"
    assert (highest.missing or "").startswith(said)
    assert f"{confirmed:.0f} requests/s is confirmed" in (highest.missing or "")
    assert page.verdict is not None
    assert said in page.verdict.reason
    assert "client-limit" in {doubt.code for doubt in result.doubts}
    outcomes = {m.labels["rate"]: m.labels["outcome"] for m in result.measures if "rate" in m.labels}
    assert {rate for rate, outcome in outcomes.items() if outcome == "client"} == set(late)
    assert "missed" not in outcomes.values()


def test_a_client_is_late_where_its_bounds_would_feel_it() -> None:
    asked = replace(SPEC, target="endpoint", latency_bound_s=0.05)
    launches = [([0.01] * 1000, 0.0024, False), ([0.01] * 1000, 0.0026, True), ([0.06] * 1000, 0.0026, False)]
    for latencies_s, late_s, is_late in launches:
        served = summarize_requests(records(latencies_s, late_s=late_s, spec=asked))
        assert served is not None
        assert served.is_client_late == is_late


def test_a_server_that_is_slower_than_half_its_client_has_a_highest_rate(tmp_path: Path) -> None:
    asked = config(**ENDPOINT)
    launched = run(asked, offline_per_s=1000.0, highest_per_s=300.0, client_per_s=700.0)
    result = conclude(written(tmp_path, asked, *launched)).result
    assert result.exit_code == ExitCode.DONE
    assert result.measures[0].value == pytest.approx(300.0, rel=0.05)
    assert "client-limit" not in {doubt.code for doubt in result.doubts}


@pytest.mark.parametrize("time_s", [60.0, 120.0, 300.0])
def test_a_search_keeps_to_its_time_and_says_it_before(time_s: float) -> None:
    asked = config(search_time_s=time_s, min_requests=100)
    suite = suite_of(asked)
    state = suite.begin(asked, HERE)
    before = suite.remaining(state)
    assert (before.seconds, before.basis) == (time_s, "limit")
    launched = run(asked, offline_per_s=1000.0, highest_per_s=37.0)
    for one in launched:
        state = suite.settle(state, one)
    assert state.used_s <= time_s
    assert suite.remaining(state).num_launches == 0
    if time_s == 60.0:
        assert state.search.wanted is not None  # something was left, and there was no time for it


def test_no_rate_under_the_floor_is_tried() -> None:
    launched = run(config(search_lowest_per_s=300.0), offline_per_s=1000.0, highest_per_s=0.0)
    assert rates(launched) == [500.0, 300.0]


def test_a_named_rate_says_what_it_takes() -> None:
    asked = config(rate_per_s=2.0, min_requests=100)
    state = suite_of(asked).begin(asked, HERE)
    remaining = suite_of(asked).remaining(state)
    assert remaining.seconds == asked.run.repeats * (50.0 + 5.0)
    assert remaining.basis == "estimate"


def test_the_curve_is_measured_below_the_highest_rate() -> None:
    plain = rates(run(config(curve=False), offline_per_s=1000.0, highest_per_s=730.0))
    with_curve = rates(run(config(), offline_per_s=1000.0, highest_per_s=730.0))
    top = max(rate for rate in plain if rate <= 730)
    wanted = [0.1 * top, 0.25 * top, 0.5 * top, 0.75 * top]
    assert [rate for rate in with_curve if rate not in plain] == pytest.approx(wanted)


def test_a_point_of_the_curve_that_the_search_was_near_is_not_measured_again() -> None:
    asked = config(search_precision=0.5)
    launched = run(asked, offline_per_s=1000.0, highest_per_s=999.0)  # met at 500 and 750: finished
    assert sorted(rates(launched)) == pytest.approx([75.0, 187.5, 375.0, 500.0, 562.5, 750.0])
    precise = run(config(search_precision=0.02), offline_per_s=1000.0, highest_per_s=999.0)
    top = max(rates(precise))
    assert 0.5 * top not in rates(precise)  # 500 was on the way


def test_a_rate_that_is_named_is_not_searched() -> None:
    asked = config(rate_per_s=80.0).model_copy(update={"run": RunConfig().run})
    cases = next_cases(asked)
    assert [(case.case_id, case.replicate) for case in cases] == [("main", k) for k in range(len(cases))]
    assert len(cases) == asked.run.repeats
    for case in cases:
        assert (spec_in(case).scenario, spec_in(case).rate_per_s) == ("server", 80.0)
        assert spec_in(case).latency_bound_s == 0.05


def test_a_closed_loop_is_one_case() -> None:
    (case,) = next_cases(config(scenario="closed_loop"))
    assert (case.case_id, spec_in(case).scenario) == ("main", "closed_loop")


def test_a_failed_offline_launch_asks_for_nothing_else() -> None:
    (offline,) = next_cases(config())
    assert offline.case_id == "offline"
    assert next_cases(config(), [CaseRecords(case=offline, records=())]) == []


@pytest.mark.parametrize(("latency_s", "is_said"), [(0.01, False), (2.0, True)])
def test_what_to_set_is_said_where_no_request_kept_the_bound(
    latency_s: float, is_said: bool, tmp_path: Path
) -> None:
    asked = config(rate_per_s=100.0)
    case = next_cases(asked)[0]
    launch = replace(records([latency_s] * 40, spec=spec_in(case)), case=case)
    said = "no request had latency under 50.0 ms: set serving.latency_bound_s to what users of this model"
    assert (
        any(note.startswith(said) for note in notes_of(conclude(written(tmp_path, asked, launch)))) == is_said
    )


@pytest.mark.parametrize("num_resent", [0, 2])
def test_requests_that_went_out_twice_are_counted(num_resent: int, tmp_path: Path) -> None:
    asked = config(rate_per_s=100.0)
    case = next_cases(asked)[0]
    launch = replace(records([0.01] * 40, spec=spec_in(case)), case=case)
    lines = tuple(
        replace(line, num_resent=num_resent) if isinstance(line, ServingWindow) else line
        for line in launch.records
    )
    notes = notes_of(conclude(written(tmp_path, asked, replace(launch, records=lines))))
    assert any(note.startswith("2 requests were sent again") for note in notes) == (num_resent > 0)


def test_compare_sees_a_slow_server_that_answers_all(tmp_path: Path) -> None:
    asked = config(rate_per_s=100.0, latency_bound_s=None).model_copy(update={"run": RunSection(repeats=3)})
    sides = []
    for name, latency_s in (("a", 0.01), ("b", 0.02)):
        launches = [
            replace(records([latency_s * (1 + k % 50 / 100)] * 400, spec=spec_in(case)), case=case)
            for k, case in enumerate(next_cases(asked))
        ]
        run = written(tmp_path / name, asked, *launches)
        conclude(run)
        sides.append(read_finished(run.root))
    compared = {m.labels["compared"]: m for m in compare_runs(*sides).measures if m.name[:3] == "p99"}
    ratio = compared["B over A"]
    assert ratio.value == pytest.approx(2.0)
    assert ratio.interval is not None
    assert ratio.interval.low > 1


def written(folder: Path, asked: RunConfig, *launches: CaseRecords) -> RunDirectory:
    run = write_run(folder, launches)
    described = {key: value for key, value in run.description().items() if key != "schema_version"}
    run.write_description({**described, "config": asked.model_dump(mode="json")})
    return run
