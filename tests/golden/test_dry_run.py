"""What `--dry-run` says of every verb that measures, here, on hosts and on a cluster: no commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuproof.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "hosts.yaml": "hosts:\n  - {host: node1, gpus: 8}\n  - {host: node2, gpus: 8}\n",
    "slurm.yaml": "partition: debug\nnodes: 2\n",
    "matrix.yaml": (ROOT / "examples/matrix/matrix.yaml").read_text(encoding="utf-8"),
}
VERBS = {
    "run": "run quick",
    "run_sweep": "run quick --matrix.data.batch_size='[16, 32]' --run.repeats=1",
    "run_search": "run quick --search.kind=batch_size --data.name=synthetic --run.repeats=1",
    "run_serving": "run serving",
    "run_collectives": "run collectives --nproc 8 -b 8 -e 8G -f 2",
    "run_probe": "run probe --probe.name=fingerprint --devices 0,2 --nproc 2",
    "run_on_hosts": "run quick --deployment-file hosts.yaml",
    "run_one_job": "run quick --deployment-file hosts.yaml --one-job",
    "run_on_slurm": "run quick --on slurm:slurm.yaml --nproc 8 --distributed.nodes=4",
    "run_on_kubernetes": "run quick --on kubernetes --nproc 8",
    "load": "load --quick --output results.json",
    "scale": "scale --device cpu --max-devices 2 --gpu-mode multi --runs 5",
    "validate": "validate --allow-cpu --recipe quick --junit v.xml",
    "validate_hosts": "validate --deployment-file hosts.yaml",
    "validate_slurm": "validate --on slurm:slurm.yaml",
    "matrix": "matrix matrix.yaml --parallel 4 --output-dir out",
    "compare": "compare --ab quick --b.training.precision=bf16",
}


@pytest.fixture(autouse=True)
def anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Slurm is here, and the machine has the same memory wherever this runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("gpuproof.cli.measuring.memory_total_bytes", lambda: 64 * 2**30)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("verb", VERBS)
def test_what_would_run_is_said_in_a_few_lines(verb: str, golden: Callable[[str, str], None]) -> None:
    words = [*shlex.split(VERBS[verb]), "--dry-run"]
    shown = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert len(shown.stdout.splitlines()) <= 12
    assert " -m gpuproof" not in shown.stdout
    assert "#SBATCH" not in shown.stdout
    golden(f"dry_run/{verb}.txt", f"$ gpuproof {shlex.join(words)}\n{shown.stdout}")
    assert sorted(path.name for path in Path().iterdir()) == sorted(FILES)


@pytest.mark.parametrize(
    ("verb", "start"),
    [
        ("run_on_kubernetes", "# For inspection"),
        ("run_on_slurm", "#!/bin/bash"),
        ("validate_slurm", "salloc "),
    ],
)
def test_verbose_prints_what_would_be_started_and_that_alone_on_standard_output(
    verb: str, start: str
) -> None:
    shown = CliRunner().invoke(cli, [*shlex.split(VERBS[verb]), "--dry-run", "--verbose"])
    assert shown.stdout.startswith(start), shown.output
    assert "where: " in shown.stderr
    assert "where: " not in shown.stdout
