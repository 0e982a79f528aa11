"""Expected hardware of products, and versions without security notices, each with its source.

The values are in `skus.toml` and `versions.toml`, which also list what was omitted and why. Nothing is
guessed: there are no expectations for a board or branch that is not listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import NamedTuple

import tomllib

from gpuproof.base.errors import UsageError
from gpuproof.base.files import packaged_text


class Sourced(NamedTuple):
    """A number or version, and the document that states it."""

    value: float | str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sku:
    """A product: a server, or a cloud instance type."""

    name: str
    boards: tuple[str, ...]
    """Names of the product's GPU model, as reported by drivers."""
    values: Mapping[str, Sourced]
    """Expected values by key, as in skus.toml: `gpus`, `memory_gb`, `nvlinks`, `pcie_gen` …"""

    @property
    def num_gpus(self) -> int:
        """Number of GPUs in the product."""
        return int(self.values["gpus"].value)

    def is_product(self, dmi_name: str | None) -> bool:
        """Return whether a DMI name starts with one of the product's names."""
        return dmi_name is not None and _plain(dmi_name).startswith(
            tuple(_plain(name) for name in self.name.split(" / "))
        )


def _plain(name: str) -> str:
    return name.replace(" ", "").casefold()


@cache
def all_skus() -> tuple[Sku, ...]:
    """Return every product in skus.toml."""
    data = tomllib.loads(packaged_text("hardware/skus.toml"))
    sources = {key: f"{text}, as of {date}" for key, (text, date) in data["sources"].items()}
    return tuple(
        Sku(
            name=row.pop("name"),
            boards=tuple(row.pop("boards")),
            values={key: Sourced(float(number), sources[source]) for key, (number, source) in row.items()},
        )
        for row in data["sku"]
    )


def find_sku(name: str) -> Sku:
    """Return the product with this name or alias.

    Raises:
        UsageError: no product has that name.
    """
    names = {_plain(part): sku for sku in all_skus() for part in (sku.name, *sku.name.split(" / "))}
    if _plain(name) in names:
        return names[_plain(name)]
    close = get_close_matches(_plain(name), names, n=1)
    hint = f"Did you mean {names[close[0]].name!r}? " if close else ""
    known = ", ".join(sku.name for sku in all_skus())
    raise UsageError(f"--sku: there is no product named {name!r}", next_step=f"{hint}Known: {known}")


def detect_skus(board: str, number: int, dmi_name: str | None) -> Sequence[Sku]:
    """Return the products that a machine with `number` boards of this name could be.

    If DMI identifies a product, only that product is returned; otherwise, the products with the same number
    of GPUs or, failing that, the products with more.
    """
    having = [sku for sku in all_skus() if board in sku.boards]
    named = [sku for sku in having if sku.is_product(dmi_name)]
    exact = [sku for sku in having if sku.num_gpus == number]
    return named or exact or [sku for sku in having if sku.num_gpus > number]


def shared_values(skus: Sequence[Sku]) -> dict[str, Sourced]:
    """Return the expected values that all of these products share."""
    values = {key: {sku.values.get(key, (None,))[0] for sku in skus} for key in skus[0].values}
    return {key: skus[0].values[key] for key, numbers in values.items() if len(numbers) == 1}


def find_minimum(component: str, version: str) -> Sourced | None:
    """Return the lowest version without a notice, on the same branch as `version`; None if not listed."""
    rows = tomllib.loads(packaged_text("hardware/versions.toml"))["minimum"]
    of = (component, version.partition(".")[0])
    return next(
        (
            Sourced(x["version"], f"{x['source']}, {x['date']}")
            for x in rows
            if (x["component"], x["branch"]) == of
        ),
        None,
    )
