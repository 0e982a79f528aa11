"""Which keys the load suite brings itself, so that setting them could only be ignored, and what to change.

In: a `RunConfig` whose single values are in bounds. Out: contradictions of `kind: load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.refusal import Contradiction
from gpuproof.config.sections.base import ConfigSection
from gpuproof.config.sections.load import LoadConfig
from gpuproof.config.sections.serving import ServingConfig

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

BROUGHT = {
    "model": ("name", "num_classes", "options"),
    "data": ("name", "path", "batch_size", "image_size", "samples_per_epoch", "split", "download"),
    "benchmark": ("enabled", "measure_by", "measure_steps", "measure_seconds"),
    "monitoring": ("interval_s", "host_interval_s"),
    "inference": ("mode", "phase", "prompt_tokens", "new_tokens"),
    "serving": tuple(ServingConfig.model_fields),
}
"""Section → its keys that each of the twelve tests decides by itself, or has no use for."""
INSTEAD = {
    "benchmark": "Set load.num_epochs and load.num_batches",
    "monitoring": "Set load.metrics_sample_rate_s",
}


def find_load_contradictions(config: RunConfig) -> list[Contradiction]:
    """Name every contradiction between `kind: load` and the rest of the config."""
    return _of_the_suite(config) if config.kind == "load" else _of_other_kinds(config)


def _of_the_suite(config: RunConfig) -> list[Contradiction]:
    found = [
        Contradiction(
            keys=(f"{section}.{key}", "kind"),
            cause="each of the twelve tests of kind load brings its own",
            next_step=INSTEAD.get(section, "Remove it, or set kind to training or inference"),
        )
        for section, keys in BROUGHT.items()
        for key in _changed(getattr(config, section), keys)
    ]
    if config.matrix or config.search.kind is not None:
        key = "matrix" if config.matrix else "search.kind"
        cause = "the twelve tests of kind load are a sweep of their own"
        found.append(Contradiction(keys=(key, "kind"), cause=cause, next_step=f"Remove {key}"))
    return found


def _of_other_kinds(config: RunConfig) -> list[Contradiction]:
    return [
        Contradiction(
            keys=(f"load.{key}", "kind"),
            cause=f"it is for the load suite, and kind is {config.kind}",
            next_step="Set kind to load, or remove the section",
        )
        for key in _changed(config.load, tuple(LoadConfig.model_fields))
    ]


def _changed(section: ConfigSection, keys: tuple[str, ...]) -> list[str]:
    """Return the keys of a section that do not have their default."""
    fields = type(section).model_fields
    return [
        key for key in keys if getattr(section, key) != fields[key].get_default(call_default_factory=True)
    ]
