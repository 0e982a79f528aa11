"""How many devices of which type does a validation of this machine take, and are all there that should be?

In: the options, and what this machine has. Out: words that set keys of the recipe, or why it ends at once:
with 3 where GPUs were expected or granted and none is there, with 5 where nothing says how many there should
be, or where a device that was asked for by name is not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpuproof.errors import EnvironmentUnfitError, GpuproofError
from gpuproof.processes.granted import granted_gpus

if TYPE_CHECKING:
    from gpuproof.launchers.registry import HostChoice

CPU_RANKS = 2
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


def count_devices(python: str | None, device: str) -> int:
    """Return how many devices of a type torch sees here; of `auto` those of all types.

    Raises:
        EnvironmentUnfitError: there is none, and a driver does not answer.
    """
    from gpuproof.launchers.probe import probe

    facts = probe(python, words=["--device", device])
    same = [gpu for gpu in facts["devices"] if device in ("auto", gpu.get("kind", device))]
    if not same and (silent := facts["accelerators"]["silent"]):
        raise silent_driver([f"{row['vendor']} {row['pci_bus_id']}" for row in silent])
    return len(same)


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

    option = options["expected_gpus"]
    words = [] if option is None else [f"--validate.expected_gpus={option}"]
    config = load_config(recipe, [*words, *options["overrides"]]).config
    number = read_options(config).expected_gpus
    if number is not None:
        return number, "--expected-gpus" if option is not None else "validate.expected_gpus"
    grant = granted_gpus(os.environ)
    return (0, "") if grant is None else (grant["number"], grant["source"])


def _on_cpu(nproc: str | None) -> dict[str, Any]:
    return {"distributed.device": "cpu", "distributed.nproc": nproc or CPU_RANKS}
