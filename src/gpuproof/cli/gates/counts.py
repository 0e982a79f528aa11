"""How many devices of which type does a run on this machine take, and are all there that should be?

In: the options, and what this machine has. Out: words that set keys of the recipe, or why it ends at once:
with 3 where GPUs were expected or granted and none is there, with 5 where nothing says how many there should
be, or where a device that was asked for by name is not there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError
from gpuproof.base.units import memory
from gpuproof.cli.options import say
from gpuproof.processes.granted import granted_gpus
from gpuproof.records.work.device_sizes import sizes_for

if TYPE_CHECKING:
    from gpuproof.launchers.registry import HostChoice

CPU_RANKS = 2
OF_TRAINING = ("model.", "data.", "training.precision")
"""Keys that say what is trained."""
QUICK = "quick"
NAMES_WORK = ("model.", "data.", "matrix", "search.", "kind", "suite", "training.framework")
"""Keys with which a quick run is of what they name."""
LOOK = "Look at dmesg, nvidia-smi -L and gpuproof doctor"


class MissingGpusError(GpuproofError):
    """GPUs that were expected or granted are not there: a failure of the host, exit code 3."""


def device_words(
    options: Mapping[str, Any], hosts: HostChoice, count: Callable[[str], int], *, recipe: str
) -> dict[str, Any]:
    """Say how many devices of which type, by asking this machine (`count`) where nobody does.

    Raises:
        MissingGpusError: it has none, and some were expected or granted.
        EnvironmentUnfitError: it has none, and a processor is not allowed; or one that was named is missing.
    """
    device = options["device"] or "auto"
    if hosts.are_named or device == "cpu":
        return {} if device != "cpu" or options["nproc"] or not options["allow_cpu"] else _on_cpu(None)
    number = count(device)
    if number:
        _refuse_unknown(options, number, recipe)
        return {} if options["nproc"] or options["devices"] else {"distributed.nproc": number}
    _refuse_missing(options, 0, recipe)
    if device != "auto":
        raise EnvironmentUnfitError(
            f"there is no {device} device here", place="--device", next_step="See gpuproof doctor"
        )
    if not options["allow_cpu"]:
        raise EnvironmentUnfitError(
            "there is no GPU here that PyTorch can use, and without one nothing is ready for production",
            place="gpuproof validate",
            next_step="See gpuproof doctor; to try it on the processor: --allow-cpu",
        )
    return _on_cpu(options["nproc"])


def training_words(words: Iterable[str]) -> dict[str, str]:
    """Return what has a model that is named be trained on GPUs, too, and not the recipe's own for them."""
    is_named = any(word.removeprefix("--").startswith(OF_TRAINING) for word in words)
    return {"validate.on_gpus": "{}"} if is_named else {}


def filling(recipe: str, words: Sequence[str], *, python: str | None) -> tuple[str, list[str]]:
    """Return recipe and words of a quick run on this machine: where there is a GPU, a model that fills it.

    It stays as it is where the words name a model, data, a sweep or the processor, where no driver lists a
    device, and where the smallest one that torch sees has no room for the model.
    """
    from gpuproof.launchers.probe import probe

    keys = {key.removeprefix("--"): value for key, _, value in (word.partition("=") for word in words)}
    device = keys.get("distributed.device", "auto")
    is_open = recipe == QUICK and device != "cpu" and not any(key.startswith(NAMES_WORK) for key in keys)
    if not is_open or Path(QUICK).is_file() or not probe(words=["--users"])["users"]:
        return recipe, [*words]
    memory_bytes = min((gpu["memory_total_bytes"] or 0 for gpu in _devices_here(python, device)), default=0)
    batch = sizes_for(memory_bytes).batch_of_350m
    if batch is None:
        return recipe, [*words]
    why = f"a GPU with {memory(memory_bytes)} of memory: the 350M decoder, {batch} sequences a step"
    say(f"{why}; on the processor: gpuproof run quick --distributed.device=cpu", err=True)
    notes = [] if "run.notes" in keys else [f"--run.notes={json.dumps(why)}"]
    return f"{QUICK}-gpu", [f"--data.batch_size={batch}", *notes, *words]


def count_devices(python: str | None, device: str) -> int:
    """Return how many devices of a type torch sees here; of `auto` those of all types.

    Raises:
        EnvironmentUnfitError: there is none, and a driver does not answer.
    """
    return len(_devices_here(python, device))


def _devices_here(python: str | None, device: str) -> list[dict[str, Any]]:
    from gpuproof.launchers.probe import probe

    facts = probe(python, words=["--device", device])
    same = [gpu for gpu in facts["devices"] if device in ("auto", gpu.get("kind", device))]
    if not same and (silent := facts["accelerators"]["silent"]):
        raise silent_driver([f"{row['vendor']} {row['pci_bus_id']}" for row in silent])
    return same


def silent_driver(names: list[str]) -> EnvironmentUnfitError:
    """Return that drivers do not answer: how many GPUs there are is then not known."""
    return EnvironmentUnfitError(
        f"the driver of {', '.join(names)} does not answer",
        next_step="Look at dmesg; reset the GPU or the host",
    )


def _refuse_unknown(options: Mapping[str, Any], number: int, recipe: str) -> None:
    named = [int(text) for text in (options["devices"] or "").split(",") if text.strip().isdecimal()]
    if unknown := [index for index in named if index >= number]:
        _refuse_missing(options, number, recipe)
        raise EnvironmentUnfitError(
            f"device {unknown[0]} is not there: torch sees {number}, counted from 0", place="--devices"
        )


def _refuse_missing(options: Mapping[str, Any], number: int, recipe: str) -> None:
    expected, source = _expected(options, recipe)
    if number < expected:
        raise MissingGpusError(
            f"[node_problem] {number} GPUs visible, expected {expected} ({source})",
            place="NOT-READY",
            next_step=LOOK,
        )


def _expected(options: Mapping[str, Any], recipe: str) -> tuple[int, str]:
    """Return how many GPUs there should be, and who says so; 0 where nobody does.

    Raises:
        UsageError: the recipe is wrong.
    """
    from gpuproof.config.load import load_config
    from gpuproof.suites.validate.options import read_options

    given = {key: options[key] for key in ("expected_gpus", "sku") if options.get(key) is not None}
    words = [f"--validate.{key}={value}" for key, value in given.items()]
    config = load_config(recipe, [*words, *options["overrides"]]).config
    stated = read_options(config).stated_gpus
    if stated is not None:
        number, key = stated
        return number, f"--{key.replace('_', '-')}" if key in given else f"validate.{key}"
    grant = granted_gpus(os.environ)
    return (0, "") if grant is None else (grant["number"], grant["source"])


def _on_cpu(nproc: str | None) -> dict[str, Any]:
    return {"distributed.device": "cpu", "distributed.nproc": nproc or CPU_RANKS}
