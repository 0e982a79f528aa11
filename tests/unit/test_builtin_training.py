"""The built-in training of `monitor exec`: its words, and defaults from files of Kconfig."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.cli.monitor.builtin import defaults_file, is_builtin, training_command
from gpuproof.config.kconfig import read_kconfig
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.settings import ConfigError

DEFCONFIG = """\
CONFIG_MODEL_MODE_SINGLE=y
CONFIG_MODEL_SELECT_RESNET18=y
# CONFIG_MODEL_SELECT_LENET5 is not set
CONFIG_OPTIMIZER_SELECT_ADAMWPRUNE=y
CONFIG_PRUNING_SELECT_STATE=y
# Pruning
CONFIG_TARGET_SPARSITY="0.9"
CONFIG_PRUNING_WARMUP=10
CONFIG_BATCH_SIZE=128
CONFIG_LEARNING_RATE="0.002"
CONFIG_ADAMWPRUNE_WEIGHT_DECAY="0.01"
CONFIG_ADAMW_WEIGHT_DECAY="0.0001"
CONFIG_INFERENCE_TEST=y
# CONFIG_COMPILE_MODEL is not set
"""


def asked(*words: str, model: str | None = "lenet5", defaults: Path | None = None) -> RunConfig:
    """Return the recipe that the words come to."""
    command, _ = training_command(words, model=model, defaults=defaults, save_dir=Path("out"), name="X y")
    recipe, *overrides = command[command.index("run") + 1 :]
    return load_config(recipe, overrides).config


def test_what_begins_with_an_option_is_for_the_built_in_training() -> None:
    assert is_builtin(["--optimizer", "adamw"])
    assert not is_builtin(["python", "train.py", "--optimizer", "adamw"])
    assert not is_builtin([])


def test_the_words_of_the_adamwprune_scripts_set_keys_of_the_recipe() -> None:
    words = ("--optimizer", "adamw", "--pruning-method", "movement", "--target-sparsity", "0.9", "--lr=0.01")
    found = asked(*words, "--training.weight_decay", "0.1", "--batch-size", "32")
    assert (found.model.name, found.data.name, found.data.batch_size) == ("lenet5", "digits", 32)
    assert (found.training.optimizer, found.training.learning_rate) == ("AdamW", 0.01)
    assert (found.training.pruning.method, found.training.pruning.target_sparsity) == ("movement", 0.9)
    assert found.training.weight_decay == 0.1
    assert (found.run.save_dir, found.run.experiment_name) == ("out", "X_y")
    assert not found.monitoring.enabled


def test_a_model_of_text_gets_tokens() -> None:
    found = asked("--epochs", "1", model="gpt2")
    assert (found.model.name, found.model.num_classes, found.data.name) == ("gpt2", None, "synthetic")
    scores_bytes = found.data.batch_size * 1024 * 50_257 * 4
    assert scores_bytes < 2**30, "a batch of the digits' size needs 13 GB for its scores alone"
    assert asked("--batch-size", "64", model="gpt2").data.batch_size == 64


def test_a_file_of_kconfig_gives_defaults_and_words_go_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "resnet18-state").write_text(DEFCONFIG)
    path = defaults_file(config=None, config_dir=tmp_path, name="resnet18-state")
    found = asked("--batch-size", "16", model=None, defaults=path)
    assert (found.model.name, found.training.optimizer) == ("resnet18", "AdamWPrune")
    assert (found.training.pruning.method, found.training.pruning.target_sparsity) == ("state", 0.9)
    assert (found.training.pruning.begin_step, found.data.batch_size) == (10, 16)
    assert (found.training.learning_rate, found.training.weight_decay) == (0.002, 0.01)
    assert not found.training.compile.enabled
    unread = capsys.readouterr().err
    assert "CONFIG_INFERENCE_TEST is not read" in unread
    assert "CONFIG_ADAMW_WEIGHT_DECAY is not read" in unread
    assert "MODE_SINGLE" not in unread


def test_the_folder_is_looked_through_by_name_and_then_for_dot_config(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"--config-dir: the folder has no a and no a\.config and no \.config\."
    ):
        defaults_file(config=None, config_dir=tmp_path, name="a")
    for name in (".config", "a.config"):
        (tmp_path / name).write_text("")
        assert defaults_file(config=None, config_dir=tmp_path, name="a") == tmp_path / name
    assert defaults_file(config=Path("b"), config_dir=tmp_path, name="a") == tmp_path / "b"
    assert defaults_file(config=None, config_dir=None, name="a") is None


@pytest.mark.parametrize(
    ("words", "model", "said"),
    [
        (
            ("--optimiser", "adamw"),
            "lenet5",
            "--optimiser: not an option of the built-in training. Use --optimizer, ",
        ),
        (
            ("--optimizer", "adamw", "train.py"),
            "lenet5",
            "train.py: not an option of the built-in training. ",
        ),
        (("--optimizer", "--lr", "1"), "lenet5", "--optimizer: no value is given. Write --optimizer VALUE."),
        (("--lr", "1"), None, "--model: no model is named. "),
    ],
)
def test_wrong_words_are_named(words: tuple[str, ...], model: str | None, said: str) -> None:
    with pytest.raises(UsageError) as error:
        training_command(words, model=model, defaults=None, save_dir=Path("out"), name=None)
    assert str(error.value).startswith(said)


def test_a_line_that_kconfig_does_not_write_is_told_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / ".config"
    path.write_text("CONFIG_BATCH_SIZE=1\nbatch_size: 3\n")
    with pytest.raises(ConfigError, match=r'\.config:2: "batch_size: 3" is not a line of Kconfig'):
        read_kconfig(path)
    with pytest.raises(ConfigError, match="there is no such file"):
        read_kconfig(tmp_path / "absent")
