"""A page of every kind, from recorded runs and from records written by hand: none is measured anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ab_by_hand
import studies_by_hand
from collectives_by_hand import MIB, collective_records, trial
from gpu_run_by_hand import gpu_run, recorded
from gpuproof.campaign.conclude import conclude, conclude_tree
from gpuproof.campaign.finished import read_finished
from gpuproof.cli.plugins import page_of_plugins
from gpuproof.cli.report import page_of_runs, row_of
from gpuproof.cli.standards.baseline import page_of_baseline
from gpuproof.comparison.page import recordings_page, recordings_result
from gpuproof.comparison.recordings import compare as compare_recordings
from gpuproof.comparison.runs import compare_runs, page_of
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.doctor.plugins import list_plugins
from gpuproof.launchers.kubernetes import checks as cluster_checks
from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.observe.recording_page import recording_page, recording_result
from gpuproof.observe.side_by_side import balance_picture, comparison_picture, zoomable
from gpuproof.observe.timeline import recording_picture
from gpuproof.readings.recording import load_recording
from gpuproof.readings.selection import of_recording, side_by_side
from gpuproof.records.page import Page
from gpuproof.records.result import Result
from gpuproof.report.page_parts import with_pictures
from gpuproof.store.baselines import run_values
from gpuproof.store.provenance import of_command
from gpuproof.store.run import RunDirectory, list_runs
from gpuproof.suites.base import HostPlace
from gpuproof.suites.cases import build_case
from gpuproof.verdict.baseline import record_baseline
from gpuproof.verdict.check import ask, checks_in
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.page import outcomes_page
from machines_by_hand import Faults, machine
from old_tree_by_hand import old_tree
from pages_by_hand import PAGE, RESULT, hostile_page
from planning import next_cases
from records_by_hand import H200, write_run
from replay.exports import RECORDED

TO_READY = RECORDED.parent / "to_ready"
WRONG_COPY = RECORDED.parent / "selftest" / "bad-copy-that-comes-and-goes"
RUNS = ("training", "failed", "inference_latency", "sweep", "batch_limit", "load")
SERVED, JOBS = "serving_search", "one_job"
FLEETS = ("fleet_recipe", "fleet_load")


@dataclass(frozen=True)
class MadePage:
    """A page, its result, and the folder of its run where it has one."""

    page: Page
    result: Result
    folder: Path | None = None


def made_pages() -> Mapping[str, Callable[[Path], MadePage]]:
    """Return what makes each page in a folder that is given, by name."""
    return {
        **{kind: _of_record(RECORDED / kind / "run") for kind in (*RUNS, SERVED, JOBS, *FLEETS)},
        "validate": _of_record(TO_READY),
        "validate_failed": _of_record(WRONG_COPY),
        "validate_hosts": _validated_hosts,
        "gpu_run": lambda folder: _concluded(gpu_run(folder)),
        "scale": _scale,
        "collective": _collective,
        "ab": _ab,
        "matrix": _matrix,
        "compare": _compare,
        "monitor_show": _monitor_show,
        "monitor_compare": _monitor_compare,
        "kubernetes_verify": lambda _: _cluster(),
        "plugins": lambda _: MadePage(page_of_plugins(list_plugins()), RESULT),
        "baseline": _baseline,
        "runs": _runs,
        "by_hand": lambda _: MadePage(PAGE, RESULT),
        "hostile": lambda folder: MadePage(_hostile(folder), RESULT),
    }


def _validated_hosts(folder: Path) -> MadePage:
    """Three hosts of which all results are wrong."""
    config = load_config("validate-prolog", ["--distributed.nproc=2"]).config
    places = [HostPlace(name=name, num_devices=2) for name in ("a", "b", "c")]
    machine(folder, config, places, Faults(are_values_wrong=True))
    return _concluded(list_runs(folder)[0])


def _of_record(source: Path) -> Callable[[Path], MadePage]:
    def make(folder: Path) -> MadePage:
        shutil.copytree(source, folder / "run")
        return _concluded(RunDirectory.open(folder / "run"))

    return make


def _concluded(run: RunDirectory) -> MadePage:
    concluded = conclude(run)
    return MadePage(concluded.page, concluded.result, run.root)


def _scale(folder: Path) -> MadePage:
    cases = next_cases(studies_by_hand.config(laws=["strong"], num_devices=[1, 2, 4]))
    times = {
        case.case_id: tuple(0.32 / case.placement.num_ranks**0.85 * (1 + 0.004 * n) for n in range(3))
        for case in cases
    }
    concluded = studies_by_hand.concluded(folder, times, num_devices=[1, 2, 4])
    return MadePage(concluded.page, concluded.result)


def _collective(folder: Path) -> MadePage:
    sizes = [2**power * MIB for power in range(5)]
    sections: dict[str, Any] = {
        "kind": "collective",
        "collective": {"operations": ["all_reduce", "broadcast"], "min_bytes": "1M", "max_bytes": "16M"},
        "distributed": {"nproc": 8},
        "monitoring": {"enabled": False},
        "run": {"repeats": 3},
    }
    config = RunConfig.model_validate(sections)
    launches = [
        collective_records(
            build_case(config, replicate),
            [
                trial(
                    rank,
                    operation,
                    asked_bytes=size,
                    size_bytes=size,
                    num_elements=size // 4,
                    num_checked=size // 4,
                    durations_s=tuple(
                        (1e-4 + size / 4e11) * (1 + 0.002 * n + 0.001 * replicate) for n in range(20)
                    ),
                )
                for operation in ("all_reduce", "broadcast")
                for size in sizes
                for rank in range(8)
            ],
            device=H200,
        )
        for replicate in range(3)
    ]
    return _concluded(write_run(folder, launches, data={}, model={}, **sections))


def _ab(folder: Path) -> MadePage:
    concluded = ab_by_hand.concluded(folder, 0.02, max_regression=0.01)
    return MadePage(concluded.page, concluded.result)


def _matrix(folder: Path) -> MadePage:
    concluded = conclude_tree(old_tree(folder))
    return MadePage(concluded.page, concluded.result)


def _compare(folder: Path) -> MadePage:
    runs = [gpu_run(folder / name, gpus=1, seconds=8.0, seed=seed) for seed, name in enumerate("ab")]
    for run in runs:
        conclude(run)
    sides = [replace(read_finished(run.root), name=name) for run, name in zip(runs, "ab", strict=True)]
    result = compare_runs(*sides, max_regression=0.02)
    provenance = side_by_side(*(side.provenance for side in sides), command="gpuproof compare a b")
    return MadePage(replace(page_of(result), provenance=provenance), result)


def _monitor_show(folder: Path) -> MadePage:
    recording = load_recording(recorded(folder / "node7.jsonl", gpus=2))
    result = recording_result(recording, with_balance=True)
    pictures = [replace(recording_picture(recording), title="Over time"), balance_picture(recording)]
    return MadePage(with_pictures(recording_page(result, of_recording(recording)), pictures), result)


def _monitor_compare(folder: Path) -> MadePage:
    first, second = (
        load_recording(recorded(folder / f"{name}.jsonl", gpus=2, seconds=seconds))
        for name, seconds in (("a", 40.0), ("b", 60.0))
    )
    comparison = compare_recordings(first, second, phase_name=None, busy_percent=10.0)
    pictures = zoomable(comparison_picture(first, second, comparison))
    provenance = side_by_side(
        of_recording(first), of_recording(second), command="gpuproof monitor compare a b"
    )
    page = with_pictures(recordings_page(comparison, provenance), pictures)
    return MadePage(page, recordings_result(comparison))


def _cluster() -> MadePage:
    nodes = [
        {
            "metadata": {"name": f"gpu-node-{number}"},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "capacity": {"nvidia.com/gpu": "8"},
                "allocatable": {"nvidia.com/gpu": str(8 - number)},
            },
        }
        for number in range(2)
    ]
    facts = {"nodes": nodes, "options": KubernetesOptions()}
    checks = ask(checks_in(cluster_checks), FleetFacts(hosts={"cluster": facts}))
    seen = cluster_checks.facts_seen(facts, server="https://10.0.0.1:6443")
    provenance = of_command("gpuproof kubernetes verify", *seen)
    return MadePage(
        outcomes_page("What the cluster offers to launches", ("", checks), provenance=provenance), RESULT
    )


def _baseline(folder: Path) -> MadePage:
    run = gpu_run(folder, gpus=1, seconds=8.0)
    conclude(run)
    recorded = record_baseline(
        "pod-a", [run_values(run)], recorded="2026-11-21", gpuproof_version="0.1.0", day_effect=0.01
    )
    return MadePage(page_of_baseline(recorded), RESULT)


def _runs(folder: Path) -> MadePage:
    for kind in RUNS:
        shutil.copytree(RECORDED / kind / "run", folder / "results" / kind / "run_1")
    rows = [{**row_of(run), "number": n} for n, run in enumerate(list_runs(folder / "results"), start=1)]
    return MadePage(page_of_runs(rows, folder / "results"), RESULT)


def _hostile(folder: Path) -> Page:
    """Every text of a page, and the names that a recording brings with it."""
    page = hostile_page()
    text = page.title
    path = recorded(folder / "hostile.jsonl", gpus=1, name=text, phase=text, event=text)
    picture = recording_picture(load_recording(path))
    return replace(page, sections=(*page.sections, replace(picture, title=text)))
