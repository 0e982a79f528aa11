"""Which cases of a matrix are run, and what each is called: one answer for the rules and for the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpuproof.config.axes import Assignment, assignments, matrix_keys, num_combinations, short_names, slug
from gpuproof.config.rules.base import Refusal, Refusals
from gpuproof.records.work.command import fill_template, value_text

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

MAX_CASES = 10_000
"""Of one matrix, repetitions included."""
LONGEST_NAME = 100
"""Characters of a case's name, which is a folder's."""


def chosen_cases(config: RunConfig) -> list[Assignment]:
    """Return the combinations that cases.only leaves; the empty one where there is no matrix."""
    wanted = assignments(config.matrix) if config.matrix else [{}]
    return [one for one in wanted if all(_holds(one, text) for text in config.cases.only)]


def _holds(assignment: Assignment, text: str) -> bool:
    """Say whether a case is as `axis=value,value` has it."""
    name, _, values = text.partition("=")
    key = _key(name, assignment)
    return key is not None and value_text(assignment[key]) in values.split(",")


def _key(name: str, keys: Any) -> str | None:
    """Find a key by its full name, or by the last part of it."""
    return next((key for key in keys if name in (key, key.rpartition(".")[2])), None)


def names_from_template(chosen: Sequence[Assignment], config: RunConfig) -> list[str] | None:
    """Name cases by the user's template; None where there is none."""
    template = config.cases.name
    if template is None:
        return None
    return [slug(fill_template(template, {**config.cases.fields, **_by_short_name(one)})) for one in chosen]


def _by_short_name(assignment: Assignment) -> dict[str, Any]:
    names = short_names(list(assignment))
    return {names[key].replace(".", "_"): value for key, value in assignment.items()}


def _can_be_listed(config: RunConfig) -> bool:
    """Say whether the matrix is one whose cases can be listed; what else is wrong is told elsewhere."""
    values = config.matrix.values()
    return all(isinstance(value, list) for value in values) and num_combinations(config.matrix) <= MAX_CASES


def only_names_cases(config: RunConfig) -> Refusals:
    """Refuse a choice of an axis that there is not, or that leaves no case."""
    if not config.cases.only or not _can_be_listed(config):
        return
    keys = matrix_keys(config.matrix)
    for text in config.cases.only:
        if "=" not in text or _key(text.partition("=")[0], keys) is None:
            yield Refusal(
                keys=("cases.only",),
                cause=f"{text!r} is no AXIS=VALUE of this matrix",
                next_step=f"Its axes are {', '.join(keys) or 'none'}",
            )
            return
    if not chosen_cases(config):
        yield Refusal(
            keys=("cases.only",),
            cause=f"no case is left by {' '.join(config.cases.only)}",
            next_step="Name values that the matrix has",
        )


def names_are_different(config: RunConfig) -> Refusals:
    """Refuse two cases of one name, and names that no folder can have."""
    if config.cases.name is None or not _can_be_listed(config):
        return
    names = names_from_template(chosen_cases(config), config) or []
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        yield Refusal(
            keys=("cases.name",),
            cause=f"{Counter(names)[repeated[0]]} cases have the name {repeated[0]}",
            next_step="Name every field that the matrix varies",
        )
    elif any(len(name) > LONGEST_NAME for name in names):
        cause = f"a case's name has over {LONGEST_NAME} characters"
        yield Refusal(keys=("cases.name",), cause=cause, next_step="Name fewer fields")
