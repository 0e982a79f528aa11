"""The workload named in a recipe, and its options: a typo is reported before it reaches the node."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from gpuproof.base.errors import UsageError
from gpuproof.config.entries import cause_of, place_in, read_strictly, type_adapter
from gpuproof.config.rules.base import Refusal, Refusals
from gpuproof.records.codec import to_json
from gpuproof.workloads.info.base import InputShape, WorkloadInfo
from gpuproof.workloads.info.lookup import find_workload

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenWorkload:
    """A workload, as requested by a recipe."""

    info: WorkloadInfo
    options: Any
    """An instance of the workload's options, with defaults filled in."""
    shape: InputShape


def choose_workload(config: RunConfig) -> ChosenWorkload:
    """Look up the workload and check its options.

    Raises:
        UsageError: the workload does not exist, or an option is wrong; `place` is the key.
    """
    info, block = find_workload(config.model.name), config.model.options
    try:
        options = read_strictly(type_adapter(cast("Hashable", info.options_type)), block)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(["model", "options", *map(str, place_in(block, first["loc"]))])
        raise UsageError(cause_of(first), place=place, next_step=_valid_options(info)) from error
    unknown = sorted(set(block) - set(to_json(options)))
    if unknown:
        raise UsageError(
            "unknown option", place=f"model.options.{unknown[0]}", next_step=_valid_options(info)
        )
    shape = info.input_shape(options, config.data.image_size, config.model.num_classes)
    return ChosenWorkload(info=info, options=options, shape=shape)


def _valid_options(info: WorkloadInfo) -> str:
    return f"Options of {info.name}: {', '.join(to_json(info.options_type())) or 'none'}"


def fp64_is_of_plain_products(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Reject fp64 for models: it is not used for training, and only gemm supports it."""
    if config.training.precision == "fp64" and chosen.info.name != "gemm":
        yield Refusal(
            keys=("training.precision", "model.name"),
            cause=f"fp64 is for plain matrix products, but {chosen.info.name} is a model or moves memory",
            next_step="Set model.name to gemm, or another precision",
        )


def workload_is_of_the_kind(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Reject a kind of run that the workload does not support."""
    if config.kind not in chosen.info.kinds:
        yield Refusal(
            keys=("kind", "model.name"),
            cause=f"{chosen.info.name} is not a workload for kind: {config.kind}",
            next_step=f"Set kind to {' or '.join(chosen.info.kinds)}",
        )
