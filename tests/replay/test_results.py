"""The result of every kind of run: one shape, written and read back, and all that its page is drawn from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product

import pytest
from pydantic import TypeAdapter

import gpuproof
from concluding import are_figures_measures, text_of
from gpuproof.campaign.conclude import Concluded, conclude, read_evidence
from gpuproof.observe.run_timeline import run_pictures
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.page import Commands, Files
from gpuproof.records.result import Measure, Result
from gpuproof.store.names import read_suite
from gpuproof.store.run import RunDirectory
from replay.exports import RECORDED

KINDS = sorted(path.name for path in RECORDED.iterdir())
ON_HOSTS = {
    "fleet_recipe": ["node 0", "node 1"],
    "fleet_load": ["node 0", "node 1", "node 2"],
    "fleet_sweep": ["node 0", "node 1"],
}
Conclude = Callable[[str], tuple[RunDirectory, Concluded]]


@pytest.fixture(scope="module")
def concluded(tmp_path_factory: pytest.TempPathFactory) -> Conclude:
    """Conclude a recorded run once for all tests."""
    done: dict[str, tuple[RunDirectory, Concluded]] = {}

    def of(kind: str) -> tuple[RunDirectory, Concluded]:
        if kind not in done:
            root = tmp_path_factory.mktemp(kind) / "run"
            shutil.copytree(RECORDED / kind / "run", root)
            run = RunDirectory.open(root)
            done[kind] = run, conclude(run)
        return done[kind]

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_read_back_as_it_was_written(kind: str, concluded: Conclude) -> None:
    run, found = concluded(kind)
    assert to_json(gpuproof.load_result(run.root)) == to_json(found.result)
    content = json.loads((run.root / "result.json").read_bytes())
    assert content == to_json(found.result)
    assert TypeAdapter(Result).validate_python(content)  # what the published schema is made of
    assert content["run_id"] == run.description()["run_id"]
    assert content["suite"] == read_suite(run).name
    assert content["exit_code"] == int((RECORDED / kind / "exit_code").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_drawn_from_the_result_alone(kind: str, concluded: Conclude) -> None:
    run, found = concluded(kind)
    again = from_json(Result, json.loads((run.root / "result.json").read_bytes()))
    page = read_suite(run).page(again)
    *own, files, commands = found.page.sections  # what is said of the folder is added to the suite's page
    pictures = {picture.title for picture in run_pictures(read_evidence(run))}  # and what its records draw
    assert pictures
    assert isinstance(files, Files)
    assert isinstance(commands, Commands)
    assert (page.title, page.verdict) == (found.page.title, found.page.verdict)
    assert page.sections == tuple(section for section in own if section.title not in pictures)


@pytest.mark.parametrize("kind", KINDS)
def test_each_figure_of_a_page_is_a_measure_of_its_result(kind: str, concluded: Conclude) -> None:
    assert are_figures_measures(concluded(kind)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_measures_say_what_a_comparison_needs(kind: str, concluded: Conclude) -> None:
    _, found = concluded(kind)
    result = found.result
    assert result.measures
    for measure in result.measures:
        assert (measure.value is None) <= (measure.missing is not None or measure.text == "–"), measure
        assert measure.unit or measure.name == "evaluation loss", measure
    names = [identity(measure) for measure in result.measures]
    assert len(set(names)) == len(names), [name for name in names if names.count(name) > 1]
    for measure in result.measures:
        if measure.name == "throughput" and measure.launches:
            assert measure.better == "higher"
            assert measure.statistic == "total"
            orders = [launch.order for launch in measure.launches]
            assert len(set(orders)) == len(orders)
            low, high = (f(launch.value for launch in measure.launches) for f in (min, max))
            assert measure.value is not None
            assert low * (1 - 1e-9) <= measure.value <= high * (1 + 1e-9)
    assert {"kind", "model", "precision", "device"} <= set(result.conditions)


def throughputs(found: Concluded) -> list[Measure]:
    """Return those of runs and hosts; each device has one too."""
    return [m for m in found.result.measures if m.name == "throughput" and "/gpu/" not in m.subject]


def identity(measure: Measure) -> tuple[str, ...]:
    """Return what no two measures of a result share."""
    labels = json.dumps(to_json(measure.labels), sort_keys=True)
    return measure.case, measure.subject, measure.name, measure.statistic, labels


def test_every_launch_stands_in_its_measure(concluded: Conclude) -> None:
    (throughput,) = [
        m for m in concluded("training")[1].result.measures if (m.name, m.subject) == ("throughput", "whole")
    ]
    assert [launch.replicate for launch in throughput.launches] == [0, 1, 2]
    assert [launch.order for launch in throughput.launches] == [0, 1, 2]
    assert {launch.start for launch in throughput.launches} == {"exec"}
    assert throughput.interval is not None
    assert (throughput.interval.kind, throughput.interval.level) == ("between_launches", 0.95)
    assert throughput.interval.low < (throughput.value or 0) < throughput.interval.high
    assert throughput.labels == {"num_devices": 1}
    (p50,) = [m for m in concluded("inference_latency")[1].result.measures if m.name == "p50 latency"]
    assert (p50.unit, p50.better, p50.statistic) == ("s", "lower", "p50")
    assert [launch.replicate for launch in p50.launches] == [0, 1]
    assert all(0 < launch.value < 1 for launch in p50.launches)
    (answered,) = [m for m in concluded("serving_scenario")[1].result.measures if m.name == "answered"]
    assert [(launch.replicate, launch.order) for launch in answered.launches] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_subjects_are_hosts_where_there_are_hosts(kind: str, concluded: Conclude) -> None:
    _, found = concluded(kind)
    hosts = ON_HOSTS.get(kind, [])
    of_all = {measure.subject for measure in found.result.measures}
    subjects = {subject for subject in of_all if "/gpu/" not in subject}
    assert subjects <= {"whole", *(f"host/{host}" for host in hosts)}
    if not hosts:
        assert subjects == {"whole"}
        return
    measured = hosts[:2]  # the third host of fleet_load was not reached
    rates = [m for m in throughputs(found) if m.subject != "whole"]
    assert {m.subject for m in rates} == {f"host/{host}" for host in measured}
    assert all(m.launches for m in rates)
    assert found.result.conditions["num_hosts"] == len(hosts)
    shown = text_of(found)
    assert all(host in shown for host in hosts)


def test_a_measure_of_a_sweep_has_the_labels_of_its_point(concluded: Conclude) -> None:
    rates = throughputs(concluded("sweep")[1])
    assert {(m.labels["batch_size"], m.labels["precision"]) for m in rates} == set(
        product((4, 8), ("fp32", "bf16"))
    )
    for m in rates:
        assert m.case == f"batch_size={m.labels['batch_size']},precision={m.labels['precision']}"
        assert m.labels["num_devices"] == 1
        assert len(m.launches) == 2
    orders = sorted(launch.order for m in rates for launch in m.launches)
    assert orders == list(range(8))
    on_hosts = throughputs(concluded("fleet_sweep")[1])
    assert {(m.subject, m.labels["batch_size"]) for m in on_hosts} == {
        (f"host/{host}", batch) for host in ("node 0", "node 1") for batch in (2, 4)
    }


def test_a_test_of_the_load_suite_is_a_case_and_what_differs_is_no_condition(concluded: Conclude) -> None:
    result = concluded("load")[1].result
    assert len({measure.case for measure in result.measures} - {"main"}) == 12  # main: what limited it
    assert (result.conditions["model"], result.conditions["kind"]) == (None, None)
    assert result.conditions["precision"] == "fp32"


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_that_names_a_neighbour_never_says_that_nothing_stood_out(
    kind: str, concluded: Conclude
) -> None:
    _, found = concluded(kind)
    shown = text_of(found)
    named = {"cpu-neighbours", "cpu-steal", "gpu-neighbours"} & {doubt.code for doubt in found.result.doubts}
    if named:
        assert "and nothing unusual" not in shown
