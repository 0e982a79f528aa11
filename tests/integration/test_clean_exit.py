"""Worker processes end cleanly, every time: one that holds a data-parallel model at its exit may not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuproof.campaign.campaign import create_run
from gpuproof.config.load import load_config
from gpuproof.launchers.local.site import LocalLauncher
from gpuproof.store.names import read_config
from gpuproof.store.run import RunDirectory, read_case
from integration.conftest import SOURCE, TINY
from launching import finish
from planning import next_cases

RANKS, LAUNCHES = 4, 3
"""What one exit in five does is met by 12 exits in 93 of 100 runs of this test."""
PATIENCE_S = 240.0


def training_run(save_dir: Path, *, ranks: int, launches: int) -> RunDirectory:
    words = [
        *TINY,
        "--model.name=medium",
        f"--distributed.nproc={ranks}",
        "--distributed.threads_per_rank=1",
        f"--run.repeats={launches}",
        f"--run.save_dir='{save_dir}'",
        "--benchmark.measure_steps=5",
    ]
    loaded = load_config("quick", words)
    return create_run(loaded.config, origins=loaded.origins, source=loaded.source)


@pytest.mark.parametrize(
    ("ranks", "launches"), [(2, 1), pytest.param(RANKS, LAUNCHES, marks=pytest.mark.long)]
)
def test_workers_end_with_status_zero_and_silently(ranks: int, launches: int, tmp_path: Path) -> None:
    run = training_run(tmp_path, ranks=ranks, launches=launches)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    launcher = LocalLauncher(environment=environment)
    workers = 0
    for case in next_cases(read_config(run)):
        folder = run.begin_case(case)
        launched = launcher.start(case, [""], folder)
        # torch's agent ends with 0 only if every one of its ranks did.
        assert finish(launcher, launched, grace_s=PATIENCE_S) == 0, output_of(folder)
        records = read_case(folder)
        assert records.status == "done"
        assert records.world_size == ranks
        workers += records.world_size
        for rank in range(ranks):
            assert (folder / f"stderr-{rank}.txt").read_text() == ""
        assert not any(
            word in output_of(folder) for word in ("SIGABRT", "Traceback", "exitcode", "terminate")
        )
    assert workers == ranks * launches


def output_of(folder: Path) -> str:
    return (folder / "launcher-output.txt").read_text()
