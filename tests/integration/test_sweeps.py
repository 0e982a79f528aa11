"""Sweeps and searches by the real command: every point counts for itself, and a kill loses none."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from gpuproof.records.run import Start
from gpuproof.store.run import RunDirectory
from integration.conftest import CommandLine, Run, fingerprint
from running import MEASURED
from waiting import eventually

ONE_THREAD = "--distributed.threads_per_rank=1"


def statuses(root: Path) -> dict[str, str]:
    return {records.case.case_id: records.status for records in RunDirectory.open(root).cases()}


def summary(root: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((root / "run_summary.json").read_text())
    return found


def test_a_point_that_fails_does_not_stop_the_others_and_is_retried_alone(
    command_line: CommandLine, a_run: Run
) -> None:
    words = a_run.words("faulty", ONE_THREAD, steps=20, unless_file="struck")
    axes = ['--matrix.model.options.fault=["none","raise"]', '--matrix.distributed.device=["cpu","cuda"]']
    axes += ["--matrix.exclude=[{model.options.fault: raise, distributed.device: cuda}]"]
    planned = command_line.run(*words, *axes, "--dry-run", "--verbose")
    assert planned.stdout.count("spec.json") == 3

    ended = command_line.run(*words, *axes, CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 3, ended.stderr
    assert "Traceback" not in ended.stderr
    assert statuses(a_run.root) == {
        "fault=none,device=cpu": "done",
        "fault=none,device=cuda": "unfinished",
        "fault=raise,device=cpu": "failed",
    }
    said = " ".join(ended.stdout.split())
    assert "no CUDA device" in said
    assert "ValueError: the model broke in step 3" in said
    assert {start.start for r in RunDirectory.open(a_run.root).cases() for start in r.of(Start)} == {"fork"}
    done = a_run.root / "cases/fault=none,device=cpu"
    before = fingerprint(done)
    again = command_line.run("run", "--resume", str(a_run.root), "--retry-failed", CUDA_VISIBLE_DEVICES="")
    assert again.returncode == 3
    assert statuses(a_run.root)["fault=raise,device=cpu"] == "done"
    assert fingerprint(done) == before
    assert a_run.all_gone()


def test_a_search_for_the_largest_batch_goes_on_from_where_it_was_ended(
    command_line: CommandLine, a_run: Run
) -> None:
    search = ["--search.kind=batch_size", "--search.start=4"]
    words = a_run.words("faulty", ONE_THREAD, *search, steps=100, step_s=0.05, holds=13)
    process = command_line.start(*words)
    journal = a_run.root / "cases/batch_size=8/0/rank-0.jsonl"
    eventually("the second batch", journal.exists)
    process.send_signal(signal.SIGTERM)
    assert command_line.finish(process).returncode == 130
    assert statuses(a_run.root) == {"batch_size=4": "done", "batch_size=8": "unfinished"}
    before = fingerprint(a_run.root / "cases/batch_size=4")

    resumed = a_run.resume()
    assert resumed.returncode in MEASURED, resumed.stderr
    assert fingerprint(a_run.root / "cases/batch_size=4") == before
    assert statuses(a_run.root) == {
        "batch_size=4": "done",
        "batch_size=8": "done",
        "batch_size=12": "done",
        "batch_size=16": "failed",
    }
    found = summary(a_run.root)
    assert (found["largest_batch_that_fits"], found["smallest_batch_out_of_memory"]) == (12, 16)
    assert "batch 12 16 ran out of memory" in " ".join(resumed.stdout.split())
    settled = fingerprint(a_run.root / "cases")
    assert a_run.resume("--retry-failed").returncode in MEASURED
    assert fingerprint(a_run.root / "cases") == settled
    assert a_run.all_gone()
