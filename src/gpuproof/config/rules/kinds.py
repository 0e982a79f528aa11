"""A recipe is a union over `kind`: which blocks a kind of run has, and where a key of another one belongs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpuproof.config.rules.base import Refusal, Refusals

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

OF_A_MODEL = ("training", "inference", "serving", "load")
KINDS_OF: Mapping[str, tuple[str, ...]] = {
    "model": OF_A_MODEL,
    "data": OF_A_MODEL,
    "training": OF_A_MODEL,
    "benchmark": OF_A_MODEL,
    "profiling": OF_A_MODEL,
    "inference": ("inference", "serving", "load"),
    "serving": ("serving", "load"),
    "search": OF_A_MODEL,
    "load": ("load",),
    "collective": ("collective",),
    "probe": ("probe",),
    "command": ("command",),
}
"""Block → the kinds of run that have it, the one it is named after first. Of the load suite a rule of its
own says what each of its tests brings; every kind has the blocks that are not here."""
HINTS = {
    "collective": "-b, -e and other letters are nccl-tests', and a batch size is --data.batch_size",
}


def blocks_are_of_the_kind(config: RunConfig) -> Refusals:
    """Refuse each key of a block that this kind of run does not have, swept ones included."""
    swept: Iterable[str] = ()
    if config.matrix and config.kind != "command":
        from gpuproof.config.axes import matrix_keys

        swept = matrix_keys(config.matrix)
    for block, kinds in KINDS_OF.items():
        if config.kind in kinds:
            continue
        *homes, last = [kind for kind in kinds if kind != "load"] or kinds  # which brings most keys itself
        home = f"{', '.join(homes)} or {last}" if homes else last
        hint = f"; {HINTS[block]}" if block in HINTS else ""
        changed = [f"{block}.{key}" for key in getattr(config, block).changed()]
        for key in [*changed, *(f"matrix.{key}" for key in swept if key.startswith(f"{block}."))]:
            yield Refusal(
                keys=(key, "kind"),
                cause=f"unknown key where kind is {config.kind}: it belongs to kind {home}",
                next_step=f"Remove it, or set kind to {home}{hint}",
            )
