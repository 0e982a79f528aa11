r"""Kconfig files: defaults for a training run, and the cases of an older test matrix.

In: lines such as `CONFIG_BATCH_SIZE=128`, `CONFIG_LEARNING_RATE="0.001"`, `# CONFIG_PIN_MEMORY is not set`.
The names come from the AdamWPrune project, because existing configurations use them. Out, for defaults:
recipe keys with their values, and a list of the options that are not used here, so that none is dropped
silently. Out, for an older test matrix: overrides that set the matrix fields `model`, `optimizer`, `pruning`
and `sparsity`, and fixed fields. If pruning is none, sparsity is 0; the method `state` exists only for
adamwprune, which supports no other method.

>>> words_of('CONFIG_TEST_OPTIMIZERS="sgd"\nCONFIG_NUM_EPOCHS=3\n', source=".config")
['--matrix.include=[{"optimizer": "sgd"}]', '--cases.fields.epochs=3']
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuproof.config.settings import ConfigError, Mistake
from gpuproof.config.yaml import read_text, resolve

LISTS = {"TEST_MODELS": "model", "TEST_OPTIMIZERS": "optimizer", "TEST_PRUNING_METHODS": "pruning"}
FIXED = {
    "NUM_EPOCHS": "epochs",
    "BATCH_SIZE": "batch_size",
    "LEARNING_RATE": "learning_rate",
    "NUM_WORKERS": "num_workers",
}
_SPARSITY = re.compile(r"TEST_SPARSITY_(\d+)")
STATE, ITS_OPTIMIZER, NONE = "state", "adamwprune", "none"
MAX_BYTES = 2**20
KEYS: Mapping[str, str] = {
    "MODEL": "model.name",
    "OPTIMIZER": "training.optimizer",
    "PRUNING_METHOD": "training.pruning.method",
    "TARGET_SPARSITY": "training.pruning.target_sparsity",
    "PRUNING_WARMUP": "training.pruning.begin_step",
    "PRUNING_FREQUENCY": "training.pruning.every_steps",
    "NUM_EPOCHS": "training.epochs",
    "BATCH_SIZE": "data.batch_size",
    "LEARNING_RATE": "training.learning_rate",
    "NUM_WORKERS": "data.num_workers",
    "PIN_MEMORY": "data.pin_memory",
    "PREFETCH_FACTOR": "data.prefetch_factor",
    "PERSISTENT_WORKERS": "data.persistent_workers",
    "DEVICE": "distributed.device",
    "COMPILE_MODEL": "training.compile.enabled",
    "SGD_MOMENTUM": "training.momentum",
    "SPAM_THETA": "training.spam.threshold",
    "SPAM_INTERVAL": "training.spam.reset_steps",
    "SPAM_WARMUP_STEPS": "training.spam.warmup_steps",
}
"""Option → the recipe key it sets."""
CHOICES = {
    "MODEL_SELECT_": "model.name",
    "OPTIMIZER_SELECT_": "training.optimizer",
    "PRUNING_SELECT_": "training.pruning.method",
}
"""Prefixes of choices: in each choice, one option is y, and the rest of its name is the value."""
_SET = re.compile(r"CONFIG_(?P<name>[A-Za-z0-9_]+)=(?P<value>.*)")
_NOT_SET = re.compile(r"# CONFIG_(?P<name>[A-Za-z0-9_]+) is not set")


def words_of(text: str, *, source: str) -> list[str]:
    """Return overrides for the cases that the file describes.

    Raises:
        ConfigError: a line is not a setting, or no line defines a case.
    """
    values = {name: value for name, value in read_options(text, source=source) if value != "n"}
    axes: dict[str, list[object]] = {
        field: [resolve(part.strip()) for part in re.split(r"[,\s]+", values[name]) if part.strip()]
        for name, field in LISTS.items()
        if values.get(name)
    }
    sparsities = [
        int(match[1]) / 10 ** len(match[1])
        for name, value in values.items()
        if (match := _SPARSITY.fullmatch(name)) and value == "y"
    ]
    if not axes:
        keys = ", ".join(f"CONFIG_{name}" for name in LISTS)
        raise ConfigError([Mistake(place=source, cause="it names no case", next_step=f"Set one of {keys}")])
    fixed = [f"--cases.fields.{field}={values[name]}" for name, field in FIXED.items() if values.get(name)]
    return [f"--matrix.include={json.dumps(list(_cases(axes, sparsities)))}", *fixed]


def _cases(axes: dict[str, list[object]], sparsities: list[float]) -> Iterator[dict[str, object]]:
    """Yield each possible combination; a case without pruning is listed once."""
    for values in itertools.product(*axes.values()):
        case = dict(zip(axes, values, strict=True))
        method, optimizer = case.get("pruning"), case.get("optimizer")
        is_pair = (method == STATE) == (optimizer == ITS_OPTIMIZER)
        if "optimizer" in case and method not in (None, NONE) and not is_pair:
            continue
        if method is None or not sparsities:
            yield case
        else:
            yield from ({**case, "sparsity": s} for s in ([0.0] if method == NONE else sparsities))


@dataclass(frozen=True, slots=True, kw_only=True)
class KconfigDefaults:
    """The training settings in a Kconfig file."""

    settings: dict[str, str]
    """Recipe key → value, as YAML."""
    unread: tuple[str, ...]
    """Options that are set but never read, in file order."""


def read_kconfig(path: Path) -> KconfigDefaults:
    """Read a Kconfig file.

    Raises:
        ConfigError: it does not exist, is too large, or has a line that is not valid Kconfig.
    """
    try:
        text = read_text(path, source=str(path), max_bytes=MAX_BYTES, what="config")
    except FileNotFoundError:
        raise ConfigError([Mistake(place=str(path), cause="there is no such file")]) from None
    options = dict(read_options(text, source=str(path)))
    settings, unread = {}, []
    for name, value in options.items():
        key, chosen = _key_of(name, value, optimizer=_optimizer(options))
        if key is None and value != "n" and not name.endswith(("_MODE_SINGLE", "_MODE_NONE")):
            unread.append(f"CONFIG_{name}")
        elif key is not None:
            settings[key] = {"y": "true", "n": "false"}.get(chosen, chosen)
    return KconfigDefaults(settings=settings, unread=tuple(unread))


def read_options(text: str, *, source: str) -> Iterator[tuple[str, str]]:
    """Yield names (without CONFIG_) and values from a Kconfig text; options that are not set are n.

    Raises:
        ConfigError: a line is not valid Kconfig.
    """
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if match := _SET.fullmatch(line):
            yield match["name"], match["value"].strip().strip('"')
        elif match := _NOT_SET.fullmatch(line):
            yield match["name"], "n"
        elif line and not line.startswith("#"):
            raise ConfigError(
                [
                    Mistake(
                        place=f"{source}:{number}",
                        line=number,
                        cause=f'"{line[:60]}" is not a line of Kconfig',
                        next_step="Write CONFIG_NAME=value",
                    )
                ]
            )


def _optimizer(options: Mapping[str, str]) -> str:
    start = "OPTIMIZER_SELECT_"
    chosen = (name for name, value in options.items() if name.startswith(start) and value == "y")
    return options.get("OPTIMIZER") or next(chosen, "").removeprefix(start)


def _key_of(name: str, value: str, *, optimizer: str) -> tuple[str | None, str]:
    """Return the key that an option sets (None if there is none), and the value."""
    for start, key in CHOICES.items():
        if name.startswith(start):
            return (key if value == "y" else None), name.removeprefix(start).lower()
    if name == "MIXED_PRECISION":
        return "training.precision", "amp" if value == "y" else "fp32"
    if name.endswith("_WEIGHT_DECAY"):
        of = name.removesuffix("_WEIGHT_DECAY")
        group = "ADV" if optimizer.upper() in ("ADAMWADV", "ADAMWSPAM") else optimizer.upper()
        return ("training.weight_decay" if of == group else None), value
    return KEYS.get(name), value
