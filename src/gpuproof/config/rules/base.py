"""Definition of a rejection, and the facts that checks can use in addition to the recipe.

A rule is a pure function that yields a rejection for everything it finds wrong. `keys` are dotted, starting
with the one to change first; the message points to where that key was set.
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
    """Why a recipe cannot run: keys conflict, or do not work with this workload or on this machine."""

    keys: tuple[str, ...]
    cause: str
    next_step: str
    place: str | None = None
    """FILE:LINE of the text to change, if it is not a recipe key."""


Refusals = Iterator[Refusal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Information about where a recipe will run."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment of this process: variables from the user's own launcher are compared with what the
    recipe declares."""
    is_attached: bool = False
    """Whether this process is one of several ranks that such a launcher started."""
    hosts: tuple[InventoryHost, ...] | None = None
    """The named hosts; empty means only this machine, None means that they are unknown."""
    is_one_job: bool = False
    """Whether all hosts work on one job, regardless of their inventory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """Rules in a module that is imported only for recipes that they can reject."""

    of_recipe: tuple[Callable[[RunConfig], Refusals], ...] = ()
    of_new_run: tuple[Callable[[RunConfig], Refusals], ...] = ()
    of_workload: tuple[Callable[[RunConfig, ChosenWorkload], Refusals], ...] = ()
    of_place: tuple[Callable[[RunConfig, Facts], Refusals], ...] = ()


def sizes_go_up(block: str, smallest: int, largest: int, *, letters: tuple[str, str] = ("", "")) -> Refusals:
    """Reject a minimum size above the maximum; `letters` are the nccl-tests options for both sizes."""
    lower, raised = (f" ({letter})" if letter else "" for letter in letters)
    if smallest > largest:
        yield Refusal(
            keys=(f"{block}.min_bytes", f"{block}.max_bytes"),
            cause=f"the smallest size, {smallest}, is above the largest, {largest}",
            next_step=f"Lower {block}.min_bytes{lower}, or raise {block}.max_bytes{raised}",
        )


def without_effect(name: str, section: Options, cause: str, next_step: str, *, beside: str) -> Refusals:
    """Reject each key in section `name` that is not at its default; `beside` explains why it is unused."""
    for key in section.changed():
        yield Refusal(keys=(f"{name}.{key}", beside), cause=cause, next_step=next_step)
