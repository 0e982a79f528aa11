"""What a refusal is, and what is known outside of a recipe when it is checked.

A rule is a pure function that yields a refusal for everything it finds wrong. `keys` are dotted, the one to
change first; the message is placed where the first of them was set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuproof.records.work.options import Options

if TYPE_CHECKING:
    from gpuproof.config.inventory import InventoryHost
    from gpuproof.config.models import RunConfig
    from gpuproof.config.rules.workload import ChosenWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a recipe is not run: keys that cannot hold together, or not with this workload or place."""

    keys: tuple[str, ...]
    cause: str
    next_step: str
    place: str | None = None
    """FILE:LINE of what is to be changed where that is no key of the recipe."""


Refusals = Iterator[Refusal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of where a recipe is to run."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Of this process: what a launcher of the user's says in it is compared with what the recipe declares."""
    is_attached: bool = False
    """This process is one of several ranks that such a launcher started."""
    hosts: tuple[InventoryHost, ...] | None = None
    """The hosts that are named; empty is this machine alone, None is not known."""
    is_one_job: bool = False
    """All hosts are to work on one job, whatever their inventory says of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """The rules of a module that is imported only for recipes which they can refuse."""

    of_recipe: tuple[Callable[[RunConfig], Refusals], ...] = ()
    of_new_run: tuple[Callable[[RunConfig], Refusals], ...] = ()
    of_workload: tuple[Callable[[RunConfig, ChosenWorkload], Refusals], ...] = ()
    of_place: tuple[Callable[[RunConfig, Facts], Refusals], ...] = ()


def sizes_go_up(block: str, smallest: int, largest: int, *, letters: tuple[str, str] = ("", "")) -> Refusals:
    """Refuse a smallest size above the largest; `letters` are what nccl-tests calls the two."""
    lower, raised = (f" ({letter})" if letter else "" for letter in letters)
    if smallest > largest:
        yield Refusal(
            keys=(f"{block}.min_bytes", f"{block}.max_bytes"),
            cause=f"the smallest size, {smallest}, is above the largest, {largest}",
            next_step=f"Lower {block}.min_bytes{lower}, or raise {block}.max_bytes{raised}",
        )


def without_effect(name: str, section: Options, cause: str, next_step: str, *, beside: str) -> Refusals:
    """Refuse each key of the section `name` that does not have its default; `beside` says why it is idle."""
    for key in section.changed():
        yield Refusal(keys=(f"{name}.{key}", beside), cause=cause, next_step=next_step)
