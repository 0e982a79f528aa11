"""The training that comes with gpuproof, for `gpuproof monitor exec` where no command is given.

In: words such as `--optimizer adamw --target-sparsity 0.7`, a model, defaults from a file of Kconfig. Out:
the command that trains it, which is `gpuproof run pruning` with keys set. Any key of a recipe can be among
the words, `--training.weight_decay=0.1` say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuproof.base.errors import UsageError
from gpuproof.processes.start import our_command

FLAGS: Mapping[str, str] = {
    "optimizer": "training.optimizer",
    "pruning-method": "training.pruning.method",
    "target-sparsity": "training.pruning.target_sparsity",
    "pruning-schedule": "training.pruning.schedule",
    "pruning-warmup": "training.pruning.begin_step",
    "pruning-end-step": "training.pruning.end_step",
    "pruning-frequency": "training.pruning.every_steps",
    "epochs": "training.epochs",
    "batch-size": "data.batch_size",
    "learning-rate": "training.learning_rate",
    "lr": "training.learning_rate",
    "weight-decay": "training.weight_decay",
    "momentum": "training.momentum",
    "precision": "training.precision",
    "seed": "training.seed",
    "spam-theta": "training.spam.threshold",
    "spam-interval": "training.spam.reset_steps",
    "spam-warmup-steps": "training.spam.warmup_steps",
    "dataset": "data.name",
    "data-path": "data.path",
    "num-workers": "data.num_workers",
    "device": "distributed.device",
    "nproc": "distributed.nproc",
}
"""Word after `--` → the key of a recipe that it sets."""
TEXT_MODELS: Mapping[str, str] = {
    **{"data.name": "synthetic", "model.num_classes": "null"},
    **{"data.batch_size": "4", "data.samples_per_epoch": "400"},
}
"""Over the recipe for models of text, which take no images and tell no digits apart. The scores of a batch
of 64, as digits have it, are 64 × 1,024 × 50,257 numbers: 13 GB, and their gradients as much."""


def is_builtin(command: Sequence[str]) -> bool:
    """Say whether what comes after `--` is for the built-in training: its first word is an option.

    >>> is_builtin(["--optimizer", "adamw"]), is_builtin(["python", "train.py", "--lr", "1"])
    (True, False)
    """
    return bool(command) and command[0].startswith("--")


def defaults_file(*, config: Path | None, config_dir: Path | None, name: str | None) -> Path | None:
    """Return the file of defaults: the one named, else of the folder NAME, NAME.config or .config.

    Raises:
        UsageError: the folder has none of them.
    """
    if config is not None:
        return (config_dir or Path()) / config
    if config_dir is None:
        return None
    names = [*([name, f"{name}.config"] if name else []), ".config"]
    path = next((config_dir / file for file in names if (config_dir / file).is_file()), None)
    if path is None:
        raise UsageError(
            f"the folder has no {' and no '.join(names)}",
            place="--config-dir",
            next_step="Name the file with --config",
        )
    return path


def training_command(
    words: Sequence[str], *, model: str | None, defaults: Path | None, save_dir: Path, name: str | None
) -> tuple[tuple[str, ...], str]:
    """Return the command line of the training, and the name of its model; say what the defaults do not set.

    Raises:
        UsageError: a word is no option of it, or no model is named.
        ConfigError: the file of defaults cannot be read.
    """
    settings = {**_read_defaults(defaults), **dict(_settings(words))}
    if model is not None:
        settings["model.name"] = model
    if "model.name" not in settings:
        raise UsageError(
            "no model is named",
            place="--model",
            next_step="Name lenet5, resnet18, resnet50 or gpt2, or a command after --",
        )
    of_text = TEXT_MODELS if _is_of_text(settings["model.name"]) else {}
    keys = {
        **of_text,
        "monitoring.enabled": "false",  # the readings are this command's own
        "run.save_dir": str(save_dir),
        "run.experiment_name": re.sub(r"[^A-Za-z0-9._-]", "_", name or "training"),
        **settings,
    }
    overrides = [f"--{key}={value}" for key, value in keys.items()]
    return (*our_command(__name__), "run", "pruning", *overrides), settings["model.name"]


def _read_defaults(path: Path | None) -> dict[str, str]:
    from gpuproof.config.kconfig import read_kconfig

    if path is None:
        return {}
    defaults = read_kconfig(path)
    for option in defaults.unread:
        sys.stderr.write(f"gpuproof: {path}: {option} is not read by the built-in training\n")
    return defaults.settings


def _is_of_text(model: str) -> bool:
    from gpuproof.workloads.info.lookup import find_workload

    return find_workload(model).item == "tokens"


def _settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    remaining = list(words)
    while remaining:
        name, equals, value = remaining.pop(0).partition("=")
        flag = name.removeprefix("--")
        key = flag if "." in flag else FLAGS.get(flag)
        if not name.startswith("--") or key is None:
            raise UsageError(
                "no option of the built-in training",
                place=name,
                next_step=f"Use --{', --'.join(FLAGS)}, or any key of a recipe, such as --training.seed=7",
            )
        if not equals and (not remaining or remaining[0].startswith("--")):
            raise UsageError("no value is given", place=name, next_step=f"Write {name} VALUE")
        yield key, value if equals else remaining.pop(0)


def main(argv: Sequence[str]) -> int:
    """Run the command line of gpuproof; this module is how the training is started from here."""
    from gpuproof.cli.main import main as run_cli

    sys.argv = ["gpuproof", *argv]
    run_cli()
