"""Suites on several hosts whose figures are no points that hosts share: requests, a search, collectives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectives_by_hand import MIB, collective_records, trial
from concluding import are_figures_measures, lines_of, table_of, text_of
from gpuproof.base.errors import ExitCode
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.config.models import RunConfig
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import MeasureCell
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace
from gpuproof.suites.cases import build_case, place_case
from planning import HERE, next_cases, suite_of
from points_by_hand import failed, ladder
from records_by_hand import H200, case, failure, write_run
from served_by_hand import answered, spec_in
from served_by_hand import records as requests

SERVING: dict[str, Any] = {
    "kind": "serving",
    "serving": {"latency_bound_s": 0.05, "time_at_a_rate_s": 1.0, "window_s": 0.1, "curve": False},
}
COLLECTIVE: dict[str, Any] = {
    "kind": "collective",
    "collective": {"operations": ["all_reduce", "broadcast"], "min_bytes": "4M", "max_bytes": "4M"},
    "distributed": {"nproc": 2},
    "monitoring": {"enabled": False},
    "data": {},
    "model": {},
}
SEARCH: dict[str, Any] = {"search": {"kind": "batch_size"}}


def on(host: str, launches: list[CaseRecords]) -> list[CaseRecords]:
    return [replace(launch, case=place_case(launch.case, HostPlace(name=host))) for launch in launches]


def unreached(host: str, begun: Case | None = None) -> list[CaseRecords]:
    gone = failure("environment", rank=None, host=host, phase="deploy", message="no room there")
    return on(host, [CaseRecords(case=begun or case(), records=(gone,))])


def concluded(
    folder: Path, hosts: Mapping[str, list[CaseRecords]], sections: dict[str, Any]
) -> tuple[RunDirectory, Concluded]:
    launches = [launch for of_host in hosts.values() for launch in of_host]
    run = write_run(folder, launches, **{"run": {"repeats": 1}, **sections})
    fleet = {"hosts": [{"name": name} for name in hosts], "currency": "USD"}
    run.write_description({**run.description(), "fleet": fleet})
    return run, conclude(run)


def served(highest_per_s: float, sections: dict[str, Any] = SERVING) -> list[CaseRecords]:
    """Return the launches of a search on a server whose highest rate is known."""
    config = RunConfig.model_validate(sections)
    suite, launched = suite_of(config), []
    state = suite.begin(config, HERE)
    while following := next(iter(suite.next(state, {}, None)), None):
        launched.append(answered(following, offline_per_s=1000.0, highest_per_s=highest_per_s))
        state = suite.settle(state, launched[-1])
    return launched


def collectives(*, slower: float = 1.0) -> list[CaseRecords]:
    config = RunConfig.model_validate(COLLECTIVE)
    trials = [
        trial(rank, name, durations_s=(0.002 * slower,) * 20)
        for name in ("all_reduce", "broadcast")
        for rank in range(2)
    ]
    return [collective_records(build_case(config, 0), trials, device=H200)]


def figures_by_host(conclusion: Concluded, title: str) -> dict[str, dict[str, float | None]]:
    return {
        str(row["host"].text): {
            name: cell.measure.value for name, cell in row.items() if isinstance(cell, MeasureCell)
        }
        for row in table_of(conclusion, title)
    }


def test_each_servers_highest_rate_stands_beside_the_others(tmp_path: Path) -> None:
    highest = {"n0": 420.0, "n1": 421.0, "n2": 422.0, "n3": 419.0, "n4": 200.0}
    hosts = {name: on(name, served(rate)) for name, rate in highest.items()}
    begun = next(iter(hosts["n0"])).case
    gone = unreached("n5", replace(begun, case_id="offline"))
    run, conclusion = concluded(tmp_path, {**hosts, "n5": gone}, SERVING)
    assert conclusion.result.exit_code == ExitCode.FAILED
    assert "fleet: 5 of 6 hosts measured" in conclusion.page.title
    found = figures_by_host(conclusion, "Results of each host")
    assert set(found) == set(highest)
    for name, rate in highest.items():
        met = found[name]["highest rate"]
        assert met is not None
        assert 1.0 <= rate / met <= 1.05, name
    assert are_figures_measures(conclusion)
    (apart,) = [line for line in lines_of(conclusion, "Outlier hosts") if line.startswith("n4: ")]
    assert apart.startswith("n4: outlier in 1 of 1 figures: highest rate 5")
    assert [row["state"].text for row in table_of(conclusion, "Hosts")][5] == "failed at deploy"
    stored = json.loads((run.root / "fleet.json").read_text())
    assert stored["failed_results"][0] == {"hostname": "n5", "stage": "deploy", "error": "no room there"}
    names = [figure["name"] for figure in stored["successful_results"][0]["figures"]]
    assert names[0] == "highest rate"
    assert (run.root / "hosts" / "n0" / "run_summary.json").is_file()
    assert not (run.root / "hosts" / "n5").exists()


def test_two_servers_say_who_is_slower_and_accuse_nobody(tmp_path: Path) -> None:
    hosts = {"a": on("a", served(420.0)), "b": on("b", served(150.0))}
    _, conclusion = concluded(tmp_path, hosts, SERVING)
    assert conclusion.result.exit_code == ExitCode.DONE
    told = " ".join(lines_of(conclusion, "Outlier hosts"))
    assert "in 1 of the results: highest rate b 63 % slower" in told
    assert "compared by highest rate: the other results" in told
    assert "two hosts cannot show which of them is at fault" in told


@pytest.mark.parametrize("num_hosts", [3, 8])
def test_one_step_of_the_search_makes_no_outlier(num_hosts: int, tmp_path: Path) -> None:
    """Capacities that differ by 1 % may end a step of the search apart, here 15 %, the others equal."""
    coarse = {**SERVING, "serving": {**SERVING["serving"], "search_precision": 0.2}}
    equal = {f"n{i}": on(f"n{i}", served(501.0, coarse)) for i in range(num_hosts - 1)}
    hosts = {**equal, "odd": on("odd", served(499.0, coarse))}
    _, conclusion = concluded(tmp_path, hosts, coarse)
    rates = [
        row["highest rate"] or 0.0 for row in figures_by_host(conclusion, "Results of each host").values()
    ]
    assert min(rates) / max(rates) < 0.9
    assert not [line for line in lines_of(conclusion, "Outlier hosts") if line.startswith("odd: ")]


def test_a_server_that_meets_no_rate_is_said_not_to_be_compared(tmp_path: Path) -> None:
    hosts = {name: on(name, served(420.0)) for name in ("a", "b", "c")}
    _, conclusion = concluded(tmp_path, {**hosts, "dead": on("dead", served(0.0))}, SERVING)
    told = lines_of(conclusion, "Outlier hosts")
    assert [line for line in told if line.startswith("dead: not compared by highest rate")], told


NAMED_RATE: dict[str, Any] = {
    "kind": "serving",
    "serving": {"latency_bound_s": None, "rate_per_s": 100.0},
    "run": {"repeats": 3},
}


def at_a_rate(latency_s: float, stalled: Sequence[bool], sections: dict[str, Any]) -> list[CaseRecords]:
    """Return launches of 400 requests, of which a stall of a second takes 50 where there is one."""
    launches = []
    for replicate, is_stalled in enumerate(stalled):
        (begun,) = [c for c in next_cases(RunConfig.model_validate(sections)) if c.replicate == replicate]
        latencies = [latency_s * (1 + (37 * (k + replicate) % 100) / 500) for k in range(400)]
        if is_stalled:
            latencies[100:150] = [1.0 - k / 50 for k in range(50)]
        launches.append(replace(requests(latencies, spec=spec_in(begun)), case=begun))
    return launches


@pytest.mark.parametrize("bound_s", [None, 0.5])
@pytest.mark.parametrize("num_hosts", [3, 8])
def test_a_slow_server_that_answers_all_is_named(
    num_hosts: int, bound_s: float | None, tmp_path: Path
) -> None:
    sections = {**NAMED_RATE, "serving": {**NAMED_RATE["serving"], "latency_bound_s": bound_s}}
    equal = {f"n{i}": at_a_rate(0.01 + i * 1e-5, (False,) * 3, sections) for i in range(num_hosts - 1)}
    hosts = {**equal, "slow": at_a_rate(0.1, (False,) * 3, sections)}
    _, conclusion = concluded(tmp_path, {name: on(name, of) for name, of in hosts.items()}, sections)
    (apart,) = [line for line in lines_of(conclusion, "Outlier hosts") if " outlier in " in line]
    latencies = ["p50 latency", "p99 latency"] if bound_s is None else ["bound on p99 latency"]
    assert apart.startswith("slow: ")
    assert all(f"{name} 9" in apart or f"{name} 8" in apart for name in latencies), apart
    assert are_figures_measures(conclusion)


@pytest.mark.parametrize("num_hosts", [3, 8])
def test_no_server_is_named_for_stalls_that_any_of_them_may_meet(num_hosts: int, tmp_path: Path) -> None:
    """Half of the launches of equal servers meet a stall: some host meets none, by chance."""
    patterns = [(False, False, False), (True, False, False), (True, True, False), (False, True, True)]
    hosts = {
        f"n{i}": on(f"n{i}", at_a_rate(0.01 + i * 1e-5, patterns[i % 4], NAMED_RATE))
        for i in range(num_hosts)
    }
    _, conclusion = concluded(tmp_path, hosts, NAMED_RATE)
    told = lines_of(conclusion, "Outlier hosts")
    assert not [line for line in told if " outlier in " in line], told
    assert "p99 latency" in figures_by_host(conclusion, "Results of each host")["n0"]


def test_latencies_that_differ_from_launch_to_launch_say_how_slow_a_host_must_be(tmp_path: Path) -> None:
    hosts = {f"n{i}": on(f"n{i}", at_a_rate(0.02, [i < 3, False, False], NAMED_RATE)) for i in range(5)}
    _, conclusion = concluded(tmp_path, hosts, NAMED_RATE)
    told = [line for line in lines_of(conclusion, "Outlier hosts") if "the intervals are so wide" in line]
    assert [line.partition(":")[0] for line in told] == ["p99 latency"]  # p50 and answered are steady


def test_servers_are_not_compared_by_latencies_of_one_launch(tmp_path: Path) -> None:
    hosts = {f"n{i}": on(f"n{i}", at_a_rate(0.01, (i == 0,), NAMED_RATE)) for i in range(8)}
    _, conclusion = concluded(tmp_path, hosts, NAMED_RATE)
    told = lines_of(conclusion, "Outlier hosts")
    assert not [line for line in told if " outlier in " in line], told
    assert [line for line in told if line.startswith("compared by answered: the other results are")]


def test_a_search_on_each_host_has_limits_of_its_own(tmp_path: Path) -> None:
    small = [*ladder(slower=2.0)[:2], failed("batch_size=64", "out_of_memory", batch=64)]
    small.append(failed("batch_size=48", "out_of_memory", batch=48))
    hosts = {"large": on("large", ladder()), "small": on("small", small)}
    _, conclusion = concluded(tmp_path, hosts, SEARCH)
    found = figures_by_host(conclusion, "Results of each host")
    assert found["large"] == {
        "best throughput": pytest.approx(64 / 0.029),
        "largest that fits": 96,
    }
    assert found["small"]["largest that fits"] == 32
    assert found["small"]["best throughput"] == pytest.approx(32 / 0.030)
    assert are_figures_measures(conclusion)
    # A batch that fits is a count, and no rate by which a host could be slow.
    told = " ".join(lines_of(conclusion, "Outlier hosts"))
    assert "largest that fits" not in told
    assert "compared by best throughput: the other results are counts" in told


def test_collectives_within_each_host(tmp_path: Path) -> None:
    hosts = {
        name: on(name, collectives(slower=2.0 if name == "n3" else 1.0)) for name in ["n0", "n1", "n2", "n3"]
    }
    hosts["n4"] = unreached("n4", hosts["n0"][0].case)
    _, conclusion = concluded(tmp_path, hosts, COLLECTIVE)
    found = figures_by_host(conclusion, "Results of each host")
    # 4 MiB in 2 ms; over two ranks both operations move every byte once
    by_hand = 4 * MIB / 0.002
    assert list(found["n0"].values()) == pytest.approx([by_hand, by_hand])
    assert list(found["n3"].values()) == pytest.approx([by_hand / 2, by_hand / 2])
    assert are_figures_measures(conclusion)
    assert list(found["n0"]) == ["bus bandwidth, all_reduce", "bus bandwidth, broadcast"]
    (apart,) = [line for line in lines_of(conclusion, "Outlier hosts") if line.startswith("n3: ")]
    assert apart.startswith("n3: outlier in 2 of 2 figures: bus bandwidth, all_reduce 50 % slower")


def test_hosts_of_which_none_measured_anything(tmp_path: Path) -> None:
    for name, sections in (("serving", SERVING), ("collective", COLLECTIVE), ("search", SEARCH)):
        config = RunConfig.model_validate({"data": {}, "model": {}, **sections})
        begun = (
            (served(420.0)[0] if name == "serving" else collectives()[0]).case if name != "search" else None
        )
        hosts = {host: unreached(host, begun) for host in ("a", "b")}
        _, conclusion = concluded(tmp_path / name, hosts, sections)
        assert conclusion.result.exit_code == ExitCode.UNFIT_ENVIRONMENT, config.kind
        assert "NOTHING MEASURED" in text_of(conclusion)
