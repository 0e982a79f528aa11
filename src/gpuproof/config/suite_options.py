"""Blocks of a recipe for suites of other packages, such as `toy: {rounds: 3}`: what they may hold.

A suite is registered in the entry-point group `gpuproof.suites`. The attribute `options` of what is
registered is a standard-library dataclass, or None where the suite has none. Metadata alone tells which
suites there are; one is imported only where a recipe names it, or has a block for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.base.groups import grouped
from gpuproof.config.entries import cause_of, place_in, type_adapter
from gpuproof.config.rules.base import Refusal


def is_suite(name: str) -> bool:
    """Say whether a suite is registered by that name."""
    return name in registry.names(registry.SUITES)


def options_type(name: str) -> type[Any] | None:
    """Return the dataclass of a suite's options; None where it has none.

    Raises:
        UsageError: the suite cannot be loaded, or its options are no dataclass.
    """
    options = getattr(registry.load(registry.SUITES, name), "options", None)
    if options is None or (isinstance(options, type) and dataclasses.is_dataclass(options)):
        return options
    raise UsageError(
        f"the suite {name!r} has options that are no dataclass",
        next_step=f"Ask who maintains {registry.find_owner(registry.SUITES, name)}",
    )


def option_names(name: str) -> list[str]:
    """Name a suite's options in their order."""
    options = options_type(name)
    return [] if options is None else [field.name for field in dataclasses.fields(options) if field.init]


def resolve_block(name: str, block: Mapping[str, Any]) -> tuple[dict[str, Any], list[Refusal]]:
    """Return a suite's options as plain data with the defaults filled in, and what is wrong."""
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
        return adapter.dump_python(adapter.validate_python(dict(block)), mode="json"), []
    except ValidationError as error:
        return {}, list(_refusals(name, dict(block), error))


def _refusals(name: str, block: dict[str, Any], error: ValidationError) -> Iterator[Refusal]:
    """Yield one refusal a key: of what may be one of several, all that it may be."""
    hint = f"`gpuproof config schema` says what it takes; on the command line --{name}.OPTION=VALUE"
    causes = grouped(
        (".".join([name, *map(str, place_in(block, detail["loc"]))]), cause_of(detail))
        for detail in error.errors(include_url=False)
    )
    for key, of_key in causes.items():
        yield Refusal(keys=(key, name, "suite"), cause=", or ".join(dict.fromkeys(of_key)), next_step=hint)


def block_schemas(excluded: frozenset[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON Schemas of the blocks of all suites not in `own`, and what they refer to."""
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
