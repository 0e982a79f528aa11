"""The `matrix` section: its points, and every mistake at the line of the entry that makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuproof.config.load import LoadedConfig, load_config
from gpuproof.config.matrix import assignments
from gpuproof.config.settings import ConfigError

BASE = "training:\n  precision: fp32\ndata:\n  batch_size: 8\nmatrix:\n"
"""Five lines: the matrix's first entry is on line 6."""


def load(tmp_path: Path, matrix: str, *words: str, base: str = BASE) -> LoadedConfig:
    path = tmp_path / "m.yaml"
    path.write_text(base + matrix, encoding="utf-8")
    return load_config(str(path), words)


def refusal(tmp_path: Path, matrix: str, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, matrix, *words)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_every_combination_is_a_point_and_the_last_key_varies_fastest() -> None:
    matrix = {"training.precision": ["fp32", "bf16"], "data.batch_size": [32, 64]}
    assert [tuple(point.values()) for point in assignments(matrix)] == [
        ("fp32", 32),
        ("fp32", 64),
        ("bf16", 32),
        ("bf16", 64),
    ]
    partial = {**matrix, "exclude": [{"training.precision": "fp32", "data.batch_size": 32}]}
    assert len(assignments(partial)) == 3
    whole = {**matrix, "exclude": [{"data.batch_size": 32}]}
    assert [point["data.batch_size"] for point in assignments(whole)] == [64, 64]
    assert (
        len(assignments({"distributed.devices": [[0], [0, 1]], "exclude": [{"distributed.devices": [0]}]}))
        == 1
    )


@pytest.mark.parametrize(
    "matrix",
    [
        "  training.precision: [fp32, bf16]\n",
        "  training:\n    precision: [fp32, bf16]\n",
        "  training: {precision: [fp32, bf16]}\n",
    ],
)
def test_a_key_may_be_dotted_or_nested(matrix: str, tmp_path: Path) -> None:
    loaded = load(tmp_path, matrix)
    assert loaded.config.matrix == {"training.precision": ["fp32", "bf16"]}
    assert loaded.origins["matrix.training.precision"].endswith((":6", ":7"))


def test_the_command_line_sets_an_axis_and_takes_the_place_of_the_file_s(tmp_path: Path) -> None:
    in_file = "  training.precision: [fp32, bf16]\n"
    loaded = load(
        tmp_path, in_file, "--matrix.training.precision=[fp32,amp]", "--matrix.data.batch_size=[1,2]"
    )
    assert loaded.config.matrix == {"training.precision": ["fp32", "amp"], "data.batch_size": [1, 2]}
    assert loaded.origins["matrix.data.batch_size"] == "command line"
    assert load(tmp_path, in_file, "--matrix={}").config.matrix == {}


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        (
            "  training.precisoin: [fp32]\n",
            "m.yaml:6: training.precisoin: unknown key; did you mean precision?",
        ),
        (
            "  training.precision: [fp32, fp63]\n",
            "m.yaml:6: training.precision: expected one of fp64, fp32, tf32, amp, bf16, fp8, "
            'found the text "fp63" '
            "(point training.precision=fp63)",
        ),
        ("  training.precision: fp32\n", "m.yaml:6: matrix.training.precision: expected a list of values"),
        ("  training.precision: []\n", "m.yaml:6: matrix.training.precision: expected a list of values"),
        ("  data.batch_size: [8, 8]\n", "m.yaml:6: matrix.data.batch_size: 8 is listed twice"),
        ("  run.repeats: [1, 2]\n", "m.yaml:6: matrix.run.repeats: run applies to the whole run"),
        ("  model: [resnet18]\n", "m.yaml:6: model: expected a section"),
        (
            "  data.batch_size: [8, 20000]\n  training.precision: [fp32, bf16]\n",
            "m.yaml:6: data.batch_size: an epoch of 10000 samples does not fill a batch of 20000 "
            "(point data.batch_size=20000, training.precision=fp32 and 1 more)",
        ),
        (
            "  data.batch_size: [8]\n  exclude:\n    - {data.batch_size: 9}\n",
            "m.yaml:7: matrix.exclude: no point has data.batch_size=9, so this excludes nothing",
        ),
        (
            "  data.batch_size: [8]\n  exclude: [8]\n",
            "m.yaml:7: matrix.exclude: expected a list of combinations",
        ),
        ("  data.batch_size: [8]\n  exclude: [{}]\n", "m.yaml:7: matrix.exclude: an empty combination"),
        (
            "  data.batch_size: [8]\n  exclude: [{data.batch_size: 8}]\n",
            "m.yaml:6: matrix.data.batch_size: every point is excluded",
        ),
    ],
)
def test_a_mistake_names_the_line_of_its_entry(matrix: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path, matrix)


def test_too_many_points_are_refused_before_they_are_made(tmp_path: Path) -> None:
    sizes = f"[{', '.join(map(str, range(1, 101)))}]"
    said = refusal(
        tmp_path, f"  data.batch_size: {sizes}\n  model.num_classes: {sizes.replace('[1, ', '[')}\n"
    )
    assert "9,900 combinations (at most 1,000)" in said


def test_a_matrix_and_a_search_exclude_each_other(tmp_path: Path) -> None:
    said = refusal(tmp_path, "  data.batch_size: [8]\n", "--search.kind=batch_size")
    assert "a search chooses its points itself" in said


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--search.start=4", "search.start: nothing is searched for, since search.kind is null"),
        ("--run.order_seed=4", "run.order_seed: it shuffles the points of a matrix, but there is none"),
    ],
)
def test_a_key_that_would_do_nothing_is_refused(word: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quick", [word])
    assert said in str(caught.value)
