"""An option that a command does not have is refused before anything is looked at, with what is near it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuproof.base.errors import UsageError
from gpuproof.cli.main import cli


def refusal(line: str) -> str:
    outcome = CliRunner().invoke(cli, line.split(), prog_name="gpuproof")
    assert isinstance(outcome.exception, UsageError), outcome.output
    return str(outcome.exception)


TAKES_KEYS = (
    "run nowhere.yaml",
    "load",
    "scale",
    "validate",
    "compare --ab nowhere.yaml",
    "matrix nowhere.yaml",
)


@pytest.mark.parametrize("verb", [*TAKES_KEYS, "config show nowhere.yaml"])
@pytest.mark.parametrize("word", ["--zzzzzzz", "--zzzzzzz=3", "--zzzzzzz 3"])
def test_every_verb_refuses_before_it_looks_at_anything(
    verb: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = verb.partition(" --")[0].partition(" nowhere")[0]
    expected = f"--zzzzzzz: no such option of {name}, nor a recipe key. See gpuproof {name} --help."
    assert refusal(f"{verb} {word}") == expected
    assert list(tmp_path.iterdir()) == []


def test_a_program_of_several_words_is_no_part_of_the_command() -> None:
    outcome = CliRunner().invoke(cli, ["load", "--zzzzzzz"], prog_name="python -m gpuproof")
    assert str(outcome.exception).startswith("--zzzzzzz: no such option of load, nor a recipe key. See ")


@pytest.mark.parametrize(
    ("line", "next_step"),
    [
        ("run quick --alow-cpu", "Perhaps you mean --allow-cpu, an option of validate."),
        ("run --alow-cpu quick", "Perhaps you mean --allow-cpu, an option of validate."),
        ("run quick --allow-cpu", ". --allow-cpu is an option of validate."),
        ("validate --alow-cpu", "Perhaps you mean --allow-cpu."),
        ("validate --expected_gpus 8", "Perhaps you mean --expected-gpus."),
        ("run quick --dry-rn", "Perhaps you mean --dry-run."),
        ("run quick --lr=1", "Perhaps you mean --training.learning_rate=VALUE."),
        (
            "run quick --batch-size 64",
            "Perhaps you mean --data.batch_size=VALUE; --batch-size is an option of validate.",
        ),
        (
            "load --quik",
            "--quik: no such option of load, nor a recipe key. Perhaps you mean --quick.",
        ),
        ("monitor exec --outptu x -- true", "an option of load, compare, report and others."),
    ],
)
def test_the_nearest_option_or_key_is_named_and_whose_it_is(line: str, next_step: str) -> None:
    assert refusal(line).endswith(next_step)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "--data.batch_size",
            "command line: data.batch_size: no value is given. Write --data.batch_size=VALUE.",
        ),
        ("--suite", "command line: suite: no value is given. Write null for none."),
        ("--data.batch_sise", "command line: data.batch_sise: unknown key; did you mean batch_size?"),
    ],
)
def test_a_key_without_a_value_says_what_it_needs(word: str, message: str) -> None:
    assert refusal(f"run quick {word}").startswith(message)
