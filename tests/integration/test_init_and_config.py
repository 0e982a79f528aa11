"""`gpuproof init` on this machine, and `gpuproof config`: what is written runs, what is shown loads."""

from __future__ import annotations

import json
from pathlib import Path

from running import MEASURED, gpuproof

SMALL = (
    *("--benchmark.warmup_steps=1", "--benchmark.measure_by=steps", "--benchmark.measure_steps=2"),
    *("--data.batch_size=4", "--data.image_size=32", "--run.repeats=1", "--run.run_id=i"),
)


def test_a_recipe_is_written_once_and_runs(tmp_path: Path) -> None:
    made = gpuproof("init", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout == "Wrote gpuproof.yaml. Next: gpuproof run gpuproof.yaml\n"
    (tmp_path / "gpuproof.yaml").write_text("# mine\n" + (tmp_path / "gpuproof.yaml").read_text())
    again = gpuproof("init", cwd=tmp_path)
    assert again.returncode == 2
    assert "gpuproof.yaml: exists already. Give --force, or another -o FILE." in again.stderr
    run = gpuproof("run", "gpuproof.yaml", *SMALL, cwd=tmp_path)
    assert run.returncode in MEASURED, run.stdout + run.stderr
    forced = gpuproof("init", "--force", cwd=tmp_path)
    assert forced.returncode == 0
    shown = gpuproof("init", "-o", "-", cwd=tmp_path)
    assert shown.stdout == (tmp_path / "gpuproof.yaml").read_text()
    assert shown.stdout.startswith("# A first recipe for ")


def test_what_is_shown_loads_to_the_same(tmp_path: Path) -> None:
    words = ("--training.precision=bf16", "--model.options.a=1")
    shown = gpuproof("config", "show", "quick", *words, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert '  precision: "bf16"\n' in shown.stdout
    assert "#" not in shown.stdout
    (tmp_path / "mine.yaml").write_text(shown.stdout)
    assert gpuproof("config", "show", "mine.yaml", cwd=tmp_path).stdout == shown.stdout
    origins = gpuproof("config", "show", "mine.yaml", "--origin", "--run.repeats=2", cwd=tmp_path).stdout
    assert "  repeats: 2  # command line\n" in origins
    assert '  precision: "bf16"  # mine.yaml:' in origins


def test_a_mistake_is_said_and_the_schema_printed(tmp_path: Path) -> None:
    wrong = gpuproof("config", "show", "quick", "--training.precisio=bf16", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "did you mean precision?" in wrong.stderr
    schema = json.loads(gpuproof("config", "schema", cwd=tmp_path).stdout)
    assert "training" in schema["properties"]
