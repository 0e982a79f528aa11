"""The training built into gpuproof, which `gpuproof monitor exec` runs when no command is given.

Input: arguments such as `--optimizer adamw --target-sparsity 0.7`, a model, and defaults from a Kconfig file.
Output: the command that trains the model, which is `gpuproof run pruning` with keys set. The arguments may
include any recipe key, such as `--training.weight_decay=0.1`.
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
"""Option after `--` → the recipe key it sets."""
TEXT_MODELS: Mapping[str, str] = {
    **{"data.name": "synthetic", "model.num_classes": "null"},
    **{"data.batch_size": "4", "data.samples_per_epoch": "400"},
}
"""Recipe overrides for text models, which do not use images as input and do not classify digits. The logits
of a batch of 64, the default for digits, are 64 × 1,024 × 50,257 numbers, i.e. 13 GB, and their gradients
need the same amount again."""


def is_builtin(command: Sequence[str]) -> bool:
    """Return whether the arguments after `--` are for the built-in training, i.e. start with an option.

    >>> is_builtin(["--optimizer", "adamw"]), is_builtin(["python", "train.py", "--lr", "1"])
    (True, False)
    """
    return bool(command) and command[0].startswith("--")


def defaults_file(*, config: Path | None, config_dir: Path | None, name: str | None) -> Path | None:
    """Return the defaults file: the one given, or else NAME, NAME.config or .config in the folder.

    Raises:
        UsageError: the folder contains none of these files.
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
            next_step="Specify the file with --config",
        )
    return path


def training_command(
    words: Sequence[str], *, model: str | None, defaults: Path | None, save_dir: Path, name: str | None
) -> tuple[tuple[str, ...], str]:
    """Return the training command line and the model name; report defaults that have no effect.

    Raises:
        UsageError: an argument is not one of its options, or no model is given.
        ConfigError: the defaults file cannot be read.
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
        "monitoring.enabled": "false",  # this command takes its own readings
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
                "not an option of the built-in training",
                place=name,
                next_step=f"Use --{', --'.join(FLAGS)}, or any key of a recipe, such as --training.seed=7",
            )
        if not equals and (not remaining or remaining[0].startswith("--")):
            raise UsageError("no value is given", place=name, next_step=f"Write {name} VALUE")
        yield key, value if equals else remaining.pop(0)


def main(argv: Sequence[str]) -> int:
    """Run gpuproof's command line; `monitor exec` starts the built-in training through this module."""
    from gpuproof.cli.main import main as run_cli

    sys.argv = ["gpuproof", *argv]
    run_cli()
