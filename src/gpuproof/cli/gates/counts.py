"""Determine the number and type of the devices that a run here uses, and whether any are missing.

Input: the options, and this machine's devices. Output: values for keys of the recipe, or the reason why the
gate stops
immediately: with 3 if GPUs were expected or allocated and there are none, with 5 if nothing says how many
there should be, or if a requested device does not exist.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError, UsageError
from gpuproof.base.units import memory
from gpuproof.cli.options import say
from gpuproof.processes.granted import granted_gpus
from gpuproof.records.work.device_sizes import sizes_for

if TYPE_CHECKING:
    from gpuproof.launchers.registry import HostChoice

CPU_RANKS = 2
OF_TRAINING = ("model.", "data.", "training.precision")
"""Keys that define what is trained."""
QUICK = "quick"
NAMES_WORK = ("model.", "data.", "matrix", "search.", "kind", "suite", "training.framework")
"""Keys that make a quick run use the specified values instead of a model chosen for the GPU."""
LOOK = "Check dmesg, nvidia-smi -L and gpuproof doctor"


class MissingGpusError(GpuproofError):
    """Expected or allocated GPUs are missing: a failure of the host, exit code 3."""


def device_words(
    options: Mapping[str, Any], hosts: HostChoice, count: Callable[[str], int], *, recipe: str
) -> dict[str, Any]:
    """Return how many devices of which type to use; if not specified, `count` queries this machine.

    Raises:
        MissingGpusError: the machine has no GPUs, but some were expected or allocated.
        EnvironmentUnfitError: the machine has no GPUs, and a CPU is not allowed; or a requested GPU is
            missing.
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
            "PyTorch finds no usable GPU here, and without one nothing is ready for production",
            place="gpuproof validate",
            next_step="See gpuproof doctor; to try it on the CPU: --allow-cpu",
        )
    return _on_cpu(options["nproc"])


def training_words(words: Iterable[str]) -> dict[str, str]:
    """Return overrides that train the given model on GPUs too, instead of the recipe's GPU model."""
    is_named = any(word.removeprefix("--").startswith(OF_TRAINING) for word in words)
    return {"validate.on_gpus": "{}"} if is_named else {}


def filling(recipe: str, words: Sequence[str], *, python: str | None) -> tuple[str, list[str]]:
    """Return the recipe and arguments for a quick run here: on a GPU, with a model that fills it.

    The recipe is unchanged if the arguments set a model, data, a sweep or the CPU, if no driver lists a
    device, or if the model does not fit in the memory of the smallest device that torch sees.
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
    why = f"a GPU with {memory(memory_bytes)} of memory: the 350M decoder, {batch} sequences per step"
    say(f"{why}; on the CPU: gpuproof run quick --distributed.device=cpu", err=True)
    notes = [] if "run.notes" in keys else [f"--run.notes={json.dumps(why)}"]
    return f"{QUICK}-gpu", [f"--data.batch_size={batch}", *notes, *words]


def count_devices(python: str | None, device: str) -> int:
    """Return how many devices of a type torch sees on this machine; for `auto`, of all types.

    Raises:
        EnvironmentUnfitError: there is no device, and a driver does not respond.
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
    """Report that drivers do not respond: the number of GPUs is then unknown."""
    return EnvironmentUnfitError(
        f"the driver of {', '.join(names)} does not respond",
        next_step="Check dmesg; reset the GPU or the host",
    )


def _refuse_unknown(options: Mapping[str, Any], number: int, recipe: str) -> None:
    named = [int(text) for text in (options["devices"] or "").split(",") if text.strip().isdecimal()]
    if unknown := [index for index in named if index >= number]:
        _refuse_missing(options, number, recipe)
        raise EnvironmentUnfitError(
            f"device {unknown[0]} does not exist: torch numbers devices from 0, and sees {number}",
            place="--devices",
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
    """Return the expected number of GPUs, and where that number comes from; 0 if unknown.

    Raises:
        UsageError: the recipe is invalid.
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


def host_names(text: str) -> list[str]:
    """Parse comma-separated names, or read a file with one name per line.

    Raises:
        UsageError: no name is given, or the file cannot be read.
    """
    from gpuproof.config.entries import read_entries

    # os.path: a list of many names is too long for a path, which pathlib reports as an error
    is_file = os.path.isfile(text)
    lines = read_entries(text, what="expected hosts").splitlines() if is_file else text.split(",")
    names = [name for line in lines if (name := line.strip()) and not name.startswith("#")]
    if not names:
        raise UsageError("no host is named", place="--expected-hosts", next_step="Write a,b or name a file")
    return names
