"""Recipe blocks for other packages' suites, such as `toy: {rounds: 3}`: what they may contain.

A suite is registered in the entry-point group `gpuproof.suites`. The attribute `options` of the registered
object is a standard-library dataclass, or None if the suite has no options. Suites are listed from metadata
alone; one is imported only if a recipe names it or has a block for it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.base.groups import grouped
from gpuproof.config.entries import cause_of, place_in, read_strictly, type_adapter
from gpuproof.config.rules.base import Refusal


def is_suite(name: str) -> bool:
    """Return whether a suite with that name is registered."""
    return name in registry.names(registry.SUITES)


def options_type(name: str) -> type[Any] | None:
    """Return the dataclass of a suite's options; None if it has no options.

    Raises:
        UsageError: the suite cannot be loaded, or its options are not a dataclass.
    """
    options = getattr(registry.load(registry.SUITES, name), "options", None)
    if options is None or (isinstance(options, type) and dataclasses.is_dataclass(options)):
        return options
    raise UsageError(
        f"the options of the suite {name!r} are not a dataclass",
        next_step=f"Contact the maintainer of {registry.find_owner(registry.SUITES, name)}",
    )


def option_names(name: str) -> list[str]:
    """Return the names of a suite's options, in order."""
    options = options_type(name)
    return [] if options is None else [field.name for field in dataclasses.fields(options) if field.init]


def resolve_block(name: str, block: Mapping[str, Any]) -> tuple[dict[str, Any], list[Refusal]]:
    """Return a suite's options as plain data with defaults filled in, and a list of mistakes."""
    names = option_names(name)
    hint = f"Options of {name}: {', '.join(names) or 'none'}; on the command line --{name}.OPTION=VALUE"
    unknown = [
        Refusal(keys=(f"{name}.{key}",), cause="unknown option", next_step=hint)
        for key in block
        if key not in names
    ]
    if unknown or not names:
        return {}, unknown
    adapter = type_adapter(cast("Hashable", options_type(name)))
    try:
        return adapter.dump_python(read_strictly(adapter, block), mode="json"), []
    except ValidationError as error:
        return {}, list(_refusals(name, dict(block), error))


def _refusals(name: str, block: dict[str, Any], error: ValidationError) -> Iterator[Refusal]:
    """Yield one rejection per key; for a union type, list all allowed types."""
    hint = f"`gpuproof config schema` shows what it accepts; on the command line --{name}.OPTION=VALUE"
    causes = grouped(
        (".".join([name, *map(str, place_in(block, detail["loc"]))]), cause_of(detail))
        for detail in error.errors(include_url=False)
    )
    for key, of_key in causes.items():
        cause = ", or ".join(dict.fromkeys(of_key))
        named = [f"{name}.{option}" for option in option_names(name) if re.search(rf"\b{option}\b", cause)]
        yield Refusal(keys=(*(named if key == name else ()), key, name, "suite"), cause=cause, next_step=hint)


def block_schemas(excluded: frozenset[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON Schemas for the blocks of suites that are not in `own`, and their definitions."""
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for name in registry.names(registry.SUITES):
        if name in excluded:
            continue
        try:
            options = options_type(name)
        except UsageError as error:
            properties[name] = {"description": f"Not known: {error}"}
            continue
        if options is not None:
            schema = TypeAdapter(options).json_schema(ref_template=f"#/$defs/{name}.{{model}}")
            definitions |= {f"{name}.{key}": value for key, value in schema.pop("$defs", {}).items()}
            properties[name] = {**schema, "additionalProperties": False}
    return properties, definitions
