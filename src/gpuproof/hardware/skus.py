"""What should a machine of a product have, and which versions are free of security notices? With sources.

The figures are in `skus.toml` and `versions.toml`, with what was left out and why. Nothing is guessed: a
board or a branch that is not listed has no expectation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

import tomllib

from gpuproof.base.errors import UsageError
from gpuproof.base.files import packaged_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedValue:
    """A number and the document that states it."""

    value: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """A product: a server, or an instance type of a cloud."""

    name: str
    boards: tuple[str, ...]
    """Names of its GPU, as drivers report them."""
    values: Mapping[str, SourcedValue]
    """By the keys of skus.toml: `gpus`, `memory_gb`, `nvlinks`, `pcie_gen` …"""

    @property
    def num_gpus(self) -> int:
        """How many GPUs it has."""
        return int(self.values["gpus"].value)

    def is_product(self, dmi_name: str | None) -> bool:
        """Say whether a name from DMI begins with one of the product's own."""
        names = [_plain(name) for name in self.name.split(" / ")]
        return dmi_name is not None and any(_plain(dmi_name).startswith(name) for name in names)


def _plain(name: str) -> str:
    return name.replace(" ", "").casefold()


@cache
def all_skus() -> tuple[Sku, ...]:
    """Return every product of skus.toml."""
    data = tomllib.loads(packaged_text("hardware/skus.toml"))
    sources = {key: f"{text}, as of {date}" for key, (text, date) in data["sources"].items()}
    return tuple(_sku(row, sources) for row in data["sku"])


def _sku(row: Mapping[str, Any], sources: Mapping[str, str]) -> Sku:
    values = {
        key: SourcedValue(value=float(pair[0]), source=sources[pair[1]])
        for key, pair in row.items()
        if key not in ("name", "boards")
    }
    return Sku(name=row["name"], boards=tuple(row["boards"]), values=values)


def find_sku(name: str) -> Sku:
    """Return the product of a name, or of one of its names.

    Raises:
        UsageError: there is none.
    """
    names = {_plain(part): sku for sku in all_skus() for part in (sku.name, *sku.name.split(" / "))}
    if _plain(name) in names:
        return names[_plain(name)]
    close = get_close_matches(_plain(name), names, n=1)
    hint = f"Did you mean {names[close[0]].name!r}? " if close else ""
    known = ", ".join(sku.name for sku in all_skus())
    raise UsageError(f"--sku: no product is called {name!r}", next_step=f"{hint}Known: {known}")


def detect_skus(board: str, number: int, dmi_name: str | None) -> Sequence[Sku]:
    """Return the products that a machine with `number` boards of this name may be.

    A product that DMI names is the only one; else those with as many GPUs, else those with more.
    """
    having = [sku for sku in all_skus() if board in sku.boards]
    named = [sku for sku in having if sku.is_product(dmi_name)]
    exact = [sku for sku in having if sku.num_gpus == number]
    return named or exact or [sku for sku in having if sku.num_gpus > number]


def shared_values(skus: Sequence[Sku]) -> dict[str, SourcedValue]:
    """Return what all of these products have alike."""
    first = skus[0].values
    return {
        key: value
        for key, value in first.items()
        if all(key in sku.values and sku.values[key].value == value.value for sku in skus)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MinimumVersion:
    """The lowest version of a branch that no security notice names."""

    component: str
    branch: str
    version: str
    source: str
    date: str


@cache
def minimum_versions() -> tuple[MinimumVersion, ...]:
    """Return every row of versions.toml."""
    rows = tomllib.loads(packaged_text("hardware/versions.toml"))["minimum"]
    return tuple(MinimumVersion(**row) for row in rows)


def find_minimum(component: str, version: str) -> MinimumVersion | None:
    """Return the lowest version of the branch that a version belongs to; None where no notice names it."""
    branch = version.partition(".")[0]
    rows = minimum_versions()
    return next((row for row in rows if (row.component, row.branch) == (component, branch)), None)
