"""What a person reads and a program parses, for runs written down by hand and concluded without torch."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from concluding import text_of
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.what_ran import ObservedWork
from gpuproof.report.terminal import print_page
from gpuproof.store.run import RunDirectory
from gpuproof.suites.load.exports import RESULTS_FILE
from gpuproof.suites.load.plan import TESTS
from load_by_hand import done, failed, on_fleet, write_load_run
from records_by_hand import (
    CHANNELS_LAST,
    H200,
    QUIET,
    STEP_OPTIONS,
    Story,
    case,
    effective,
    environment,
    failure,
    one_rank,
    own_compute,
    setup,
    start,
    steady_times,
    window,
    write_run,
)

Golden = Callable[[str, str], None]

WORK = (
    ObservedWork(operation="convolution", dtype="bfloat16", layout="NHWC", flops=9.8e11, calls=60),
    ObservedWork(operation="convolution", dtype="bfloat16", layout="NCHW", flops=7e9, calls=2),
    ObservedWork(operation="matrix product", dtype="float32", layout=None, flops=1.3e10, calls=1),
)


def valid_launches() -> list[CaseRecords]:
    """Three launches of two H200 (by hand: no figure of a real one), 800 steps each, all of them sound."""
    launches = []
    for replicate, step_s in enumerate((0.00998, 0.01, 0.01002)):
        wall_s = 800 * step_s
        built = {
            "device": H200,
            "precision": "bf16",
            "flops_per_step": 1e12,
            "backend": "nccl",
            "options": STEP_OPTIONS,
        }
        taken = {
            "num_steps": 800,
            "items": 8000,
            "wall_s": wall_s,
            "steps_s": wall_s,
            "clock": "device_event",
        }
        story = Story(
            windows=[window(rank, **taken, peak_allocated_bytes=3 * 2**30) for rank in (0, 1)],
            setups=[setup(rank, **built) for rank in (0, 1)],
            times_s=steady_times(800, step_s),
            case=case(replicate=replicate, nproc=2, precision="bf16"),
            extra=[
                *(effective(*WORK, rank=rank) for rank in (0, 1)),
                *(own_compute(rank, 0.97 * step_s) for rank in (0, 1)),
            ],
        )
        launches.append(story.records())
    return launches


def troubled_launches() -> list[CaseRecords]:
    """A launch that others disturbed, one that lost a rank, one that was never begun."""
    crowded = replace(QUIET, busy_cpu_s=3.0, run_queue_wait_s=0.8, steal_cpu_s=0.4)
    times = [0.01 * (1 + 0.2 * (-1) ** i) for i in range(40)]
    first = one_rank(times_s=times, load=crowded, requested_steps=100, stop_reason="40 steps")
    built = setup(not_applied=(CHANNELS_LAST,), notes=("gloo moves data through host memory",))
    disturbed = replace(first, setups=[built]).records()
    lost = CaseRecords(
        case=case(replicate=1),
        records=(
            start(),
            failure(
                "lost_rank",
                rank=None,
                phase="launch",
                message="rank 0 ended without an error message by SIGKILL [9]: killed from outside",
                next_step="Look at stderr-0.txt and at dmesg; finish the run with --resume",
            ),
        ),
    )
    return [replace(disturbed, records=(environment(), *disturbed.records)), lost]


@pytest.fixture
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let paths in reports be short and the same everywhere."""
    monkeypatch.chdir(tmp_path)


def concluded(
    launches: Sequence[CaseRecords], *, repeats: int, **sections: Any
) -> tuple[RunDirectory, Concluded]:
    run = write_run(
        Path("results"), launches, run={"repeats": repeats, "experiment_name": "examples"}, **sections
    )
    return run, conclude(run)


def as_text(conclusion: Concluded) -> str:
    return text_of(conclusion, width=110)


@pytest.mark.usefixtures("in_empty_folder")
def test_a_valid_run(golden: Golden) -> None:
    run, conclusion = concluded(valid_launches(), repeats=3, training={"precision": "bf16"})
    golden("reports/valid.txt", as_text(conclusion))
    golden("reports/valid.json", (run.root / "result.json").read_text(encoding="utf-8"))


@pytest.mark.usefixtures("in_empty_folder")
def test_a_load_suite(golden: Golden) -> None:
    """By hand: no figure of a real H200."""
    broken = failed(TESTS[5], "out_of_memory", "OutOfMemoryError: tried to allocate")
    launches = [broken if test is TESTS[5] else done(test) for test in TESTS[:11]]
    run = write_load_run(Path("results"), launches)
    golden("reports/load.txt", as_text(conclude(run)))
    golden("reports/load.json", (run.root / RESULTS_FILE).read_text())


@pytest.mark.usefixtures("in_empty_folder")
def test_a_load_suite_on_a_fleet(golden: Golden) -> None:
    """Two types of GPU (by hand: no figures of real ones), a host that died, and one that was not reached."""
    older = [done(test, step_s=0.0512, gpu="NVIDIA A100-SXM4-80GB") for test in TESTS]
    gone = failure("lost_rank", rank=None, host="n3", phase="download", message="the connection is lost")
    unreached = failure("environment", rank=None, host="n4", phase="setup", message="setup: no route")
    launches = {
        **{f"n{i}": [done(test, step_s=0.0256 + i / 1e4) for test in TESTS] for i in range(2)},
        "n2": [failed(test, "out_of_memory") if test is TESTS[5] else done(test) for test in TESTS],
        "n3": [*older[:4], CaseRecords(case=older[4].case, records=(start(), gone))],
        "n4": [CaseRecords(case=older[0].case, records=(unreached,))],
    }
    run = on_fleet(Path("results"), launches, facts={"price_per_hour": 3.6}, power_w=350.0)
    golden("reports/load_fleet.txt", as_text(conclude(run)))


def ladder_launches() -> list[CaseRecords]:
    """A search on an H200 (by hand: no figure of a real one): 256 to 1,024 fit, 2,048 does not."""
    launches = []
    for batch, step_s, gib in ((256, 0.1, 20), (512, 0.11, 40), (1024, 0.2, 80)):
        wall_s = 200 * step_s
        taken: dict[str, Any] = {"num_steps": 200, "items": 200 * batch, "wall_s": wall_s, "steps_s": wall_s}
        built: dict[str, Any] = {"device": H200, "items_per_step": batch}
        story = Story(
            windows=[window(**taken, clock="device_event", peak_allocated_bytes=gib * 2**30)],
            setups=[setup(**built)],
            times_s=steady_times(200, step_s),
            case=at_batch(batch),
        )
        launches.append(story.records())
    no_memory = failure("out_of_memory", phase="warmup", message="OutOfMemoryError: tried to allocate")
    return [*launches, CaseRecords(case=at_batch(2048), records=(start(), no_memory))]


def at_batch(batch: int) -> Case:
    return replace(case(data={"batch_size": batch}), case_id=f"batch_size={batch}")


@pytest.mark.usefixtures("in_empty_folder")
def test_a_search_for_the_largest_batch(golden: Golden) -> None:
    search = {"kind": "batch_size", "start": 256, "step": 1024}
    run, conclusion = concluded(ladder_launches(), repeats=1, search=search)
    golden("reports/ladder.txt", as_text(conclusion))
    golden("reports/ladder.csv", (run.root / "summary.csv").read_text())


@pytest.mark.usefixtures("in_empty_folder")
def test_a_run_with_failures_and_doubts(golden: Golden) -> None:
    _, conclusion = concluded(
        troubled_launches(), repeats=3, model={"name": "resnet18", "channels_last": True}
    )
    golden("reports/troubled.txt", as_text(conclusion))


@pytest.mark.usefixtures("in_empty_folder")
def test_a_run_that_measured_nothing(golden: Golden) -> None:
    no_memory = failure(
        "out_of_memory",
        phase="warmup",
        message="OutOfMemoryError: tried to allocate 20.00 GiB\nsecond line \x1b[31m",
        next_step="Lower data.batch_size, or use a smaller model or precision",
    )
    _, conclusion = concluded([CaseRecords(case=case(), records=(start(), no_memory))], repeats=1)
    golden("reports/nothing.txt", as_text(conclusion))


@pytest.mark.usefixtures("in_empty_folder")
def test_the_run_directory(golden: Golden) -> None:
    launches = valid_launches()
    launches[0] = replace(launches[0], records=(environment(), *launches[0].records))
    run, _ = concluded(launches, repeats=3, training={"precision": "bf16"})
    tree = sorted(str(path.relative_to(run.root)) for path in run.root.rglob("*") if path.is_file())
    summary = json.loads((run.root / "run_summary.json").read_text())
    golden("reports/run_directory.txt", "".join(f"{name}\n" for name in tree))
    golden("reports/run_summary_keys.txt", "".join(f"{key}\n" for key in summary))
    golden("reports/summary.csv", (run.root / "summary.csv").read_text())


@pytest.mark.usefixtures("in_empty_folder")
@pytest.mark.parametrize("launches", [valid_launches, troubled_launches])
def test_a_report_in_a_file_has_no_blanks_at_line_ends_and_no_escapes(launches: Callable[[], Any]) -> None:
    text = as_text(concluded(launches(), repeats=3)[1])
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.usefixtures("in_empty_folder")
def test_on_a_terminal_the_same_words_come_in_colour() -> None:
    _, conclusion = concluded(troubled_launches(), repeats=3)
    out = io.StringIO()
    console = Console(file=out, width=110, highlight=False, force_terminal=True, color_system="standard")
    print_page(conclusion.page, console)
    assert "\x1b[1;31mINVALID\x1b[0m" in out.getvalue()
    assert "rank 0 ended without an error message by SIGKILL" in out.getvalue()


@pytest.mark.usefixtures("in_empty_folder")
def test_paths_and_commands_are_never_broken_over_lines() -> None:
    deep = Path("results") / ("a" * 80) / ("it's " + "b" * 80)
    deep.mkdir(parents=True)
    run = write_run(deep, valid_launches())
    text = as_text(conclude(run))
    assert f"  {run.root}\n" in text
    command = text.splitlines()[-1].strip()
    assert command == "gpuproof report '" + str(run.root).replace("'", "'\"'\"'") + "'"
