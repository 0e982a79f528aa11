"""Every command that the README shows runs as shown, at a tiny size; every shipped recipe does, too."""

from __future__ import annotations

import pickle
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from running import TIMEOUT_S, TINY, assert_measured, clean_environment, gpuproof

ROOT = Path(__file__).parents[2]
SMALL = (
    *("--benchmark.warmup_steps=1", "--benchmark.measure_by=steps", "--benchmark.measure_steps=2"),
    *("--data.batch_size=4", "--data.image_size=32", "--training.compile.enabled=false"),
    *("--model.name=simple_cnn", "--training.precision=bf16", "--run.repeats=1"),
    "--benchmark.own_compute=false",
)
FOREVER = ("monitor live", "monitor serve")
"""These run until they are stopped; their own tests start and stop them."""
MEASURING = ("gpuproof run ", "gpuproof report ")
"""Commands that end with what is said of a window, here one of two steps."""


def commands_of(page: str) -> list[str]:
    """Return the commands of a page's plain blocks; a block with a language shows output or code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = [
        body for language, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S) if not language
    ]
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(("gpuproof ", "torchrun "))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the README takes it to be: configs, CIFAR-100 under data, a run that was made before."""
    folder = tmp_path_factory.mktemp("readme") / "a user's place"
    shutil.copytree(ROOT / "configs", folder / "configs")
    write_tiny_cifar100(folder / "data" / "cifar-100-python")
    made = gpuproof("run", "quick", *TINY, "--run.run_id=RUN", cwd=folder)
    assert_measured(made)
    for name in "ab":
        watched = gpuproof("monitor", "exec", "--config-name", name, "--", "sleep", "1", cwd=folder)
        assert watched.returncode == 0, watched.stderr
    (folder / "train.py").write_text("print('training')\n", encoding="utf-8")
    return folder


def write_tiny_cifar100(folder: Path) -> None:
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3072), dtype=np.uint8)
    content = {b"data": pixels, b"fine_labels": [i % 100 for i in range(40)]}
    (folder / "train").write_bytes(pickle.dumps(content, protocol=2))


def runnable(command: str) -> list[str]:
    words = shlex.split(command)
    small = list(SMALL) if " run " in command and "--resume" not in command else []
    if "--model.name=large" in command:
        small = [word for word in small if not word.startswith("--model.name")]
    if words[0] == "torchrun":
        # Two ranks show what four do.
        two = [sys.executable, "-m", "torch.distributed.run", "--master-port=29533", words[1], "2"]
        words[:3] = two
        program = Path(sys.executable).with_name("gpuproof")
        return [*(str(program) if word == "gpuproof" else word for word in words), *small]
    words = [sys.executable if word == "python" else word for word in words]
    return [sys.executable, "-m", *words, *small]


@pytest.mark.parametrize("command", commands_of("README.md"))
def test_readme_command(command: str, place: Path) -> None:
    if any(words in command for words in FOREVER):
        words = [*runnable(command), "--help"]
    else:
        words = runnable(command)
    result = subprocess.run(
        words, cwd=place, env=clean_environment(), capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if command.startswith(MEASURING):
        assert_measured(result)
    else:
        assert result.returncode == 0, result.stdout + result.stderr


def test_readme_python(place: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    overrides = dict(word.removeprefix("--").split("=") for word in TINY)
    small = {key: int(value) if value.isdigit() else value for key, value in overrides.items()}
    tiny = f"whole = gpuproof.run; gpuproof.run = lambda name, given: whole(name, {{**given, **{small!r}}})"
    result = subprocess.run(
        [sys.executable, "-c", f"import gpuproof\n{tiny}\n{block}"],
        cwd=place,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "throughput" in result.stdout


def test_the_readme_has_commands() -> None:
    assert len(commands_of("README.md")) >= 10


def test_the_shipped_recipe_that_the_readme_does_not_run(place: Path) -> None:
    result = gpuproof("run", "configs/cifar100_resnet50.yaml", *SMALL, "--json", cwd=place)
    assert_measured(result)
