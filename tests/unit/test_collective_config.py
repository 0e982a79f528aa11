"""What a recipe may ask of collectives: sizes as people write them, and every refusal with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuproof.config.load import load_config
from gpuproof.config.rules.base import Facts
from gpuproof.config.settings import ConfigError
from gpuproof.records.case import CollectiveWork
from planning import next_cases

TWO = "--distributed.nproc=2"
HERE = Facts(hosts=())


@pytest.mark.parametrize(
    ("given", "expected"), [("8", 8), ("64K", 65_536), ("128M", 2**27), ("2GiB", 2**31), ("'1 k'", 1024)]
)
def test_sizes_are_read_with_binary_units(given: str, expected: int) -> None:
    words = [TWO, f"--collective.min_bytes={given}", f"--collective.max_bytes={given}"]
    config = load_config("collectives", words, facts=HERE).config
    assert config.collective.sizes_bytes == (expected,)


@pytest.mark.parametrize("given", ["0", "-8", "8T", "many", "1.5M", "true", "2097152G"])
def test_what_is_no_size_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"collective\.max_bytes"):
        load_config("collectives", [TWO, f"--collective.max_bytes={given}"], facts=HERE)


def test_sizes_go_up_by_the_factor_and_not_over_the_largest() -> None:
    words = [TWO, "--collective.min_bytes=8", "--collective.max_bytes=600", "--collective.factor=8"]
    (case,) = next_cases(load_config("collectives", words, facts=HERE).config)
    assert isinstance(case.work, CollectiveWork)
    assert case.work.collective.sizes_bytes == (8, 64, 512)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "a collective over one rank transfers nothing"),
        ([TWO, "--collective.root=2"], "there is no rank 2 among 2"),
        ([TWO, "--collective.min_bytes=1M", "--collective.max_bytes=1K"], "is above the largest"),
        ([TWO, "--training.precision=bf16"], "training.precision: unknown key when kind is collective"),
        ([TWO, "--matrix.data.batch_size=[1, 2]"], "their own lists"),
        ([TWO, "--collective.operations=[]"], "operations"),
        ([TWO, "--collective.operations=[all_recude]"], "all_recude|all_reduce"),
        (
            [TWO, "--kind=training", "--collective.factor=8"],
            "unknown key when kind is training: it belongs to kind collective",
        ),
        ([TWO, "--kind=training", "--collective.min_bytes=64"], r"-b, .* a batch size is --data\.batch_size"),
    ],
)
def test_what_cannot_be_measured_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config("collectives", words, facts=HERE)


def test_a_collective_section_in_a_training_recipe_is_refused_with_its_line(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("kind: training\ncollective:\n  factor: 2\n")
    with pytest.raises(ConfigError, match=r"r\.yaml:3"):
        load_config(str(recipe), facts=HERE)
