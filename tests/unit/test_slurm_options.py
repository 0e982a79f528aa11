"""The file of `--on slurm:FILE`: what it may say, and how mistakes in it are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuproof.config.settings import ConfigError
from gpuproof.launchers.slurm.options import SlurmOptions, load_slurm_options


def load(folder: Path, text: str) -> SlurmOptions:
    path = folder / "slurm.yaml"
    path.write_text(text)
    return load_slurm_options(str(path))


def test_numbers_stand_for_themselves_as_in_slurm(tmp_path: Path) -> None:
    options = load(tmp_path, "time: 30\nmem: 0\npartition: gpu\nsetup: [module load cuda]\n")
    assert (options.time, options.mem, options.partition) == ("30", "0", "gpu")
    assert load(tmp_path, "time: 1:30:00\n").time == "1:30:00"
    assert options.setup == ["module load cuda"]


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_changes_nothing(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == SlurmOptions()


def test_options_survive_run_json() -> None:
    options = SlurmOptions(time="30", extra=["--comment=x y"], pending_limit_s=60.0)
    assert SlurmOptions.model_validate(options.model_dump(mode="json")) == options


def test_every_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    text = (
        "partitoin: x\ngpus_per_node: -1\npartition: a b\nextra:\n  - --nodes=3\nmax_jobs: true\ntime: true\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    told = [str(mistake).partition("slurm.yaml")[2] for mistake in caught.value.mistakes]
    assert [line.split(":")[1] for line in told] == ["1", "2", "3", "4", "6", "7"]
    assert told[0] == ":1: partitoin: unknown key. Perhaps you mean partition."
    assert "--nodes is set by the recipe or by gpuproof itself" in told[3]


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--array=0-3", "is set by the recipe"),
        ("--no-requeue", "is set by the recipe"),
        ("--gpus-per-node=8", "has its own key"),
        ("-p gpu", "String should match"),
        ("--comment=a\nb", "String should match"),
    ],
)
def test_what_has_a_place_of_its_own_is_no_extra_option(option: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SlurmOptions(extra=[option])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_slurm_options(str(tmp_path / "none.yaml"))
