"""Read rules (YAML or JSON), and reject those that could never decide anything.

In: text. Out: `Rules`, or one `ConfigError` that lists every mistake with its line: a value that is not a
number, a minimum that everything passes, a rule with two expectations or none, an unknown published result.
Limits that can be ruled out by name and unit alone are rejected here; limits that depend on a board or on
measures are rejected in `refusals`, when rules are evaluated.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from gpuproof.base.errors import UsageError
from gpuproof.base.units import share
from gpuproof.config.entries import StrictModel, Text, open_document, read_as
from gpuproof.config.settings import ConfigError, Mistake
from gpuproof.config.yaml import Document, Place, read_document
from gpuproof.verdict.baseline import Baseline, BaselineEntry
from gpuproof.verdict.checks.registry import check_names
from gpuproof.verdict.expectations import PUBLISHED, load_expectations
from gpuproof.verdict.rules.model import (
    FORMS,
    MOST_TOLERANCE,
    NUMBERS,
    UNITS,
    CheckEntry,
    CheckRule,
    Expected,
    Form,
    MeasureMatch,
    Rule,
    RuleEntry,
    Rules,
    edge_of,
    is_unit_of,
    reason_no_limit,
    units_of_measure,
)

SETS = files("gpuproof") / "recipes" / "rules"


class IncludeEntry(StrictModel):
    """Folder with the rules shipped with gpuproof."""

    include: Text
    """The name of a rule set."""


Entry = RuleEntry | CheckEntry | IncludeEntry


class RulesFile(StrictModel):
    """A rules file."""

    schema_version: Literal[1] = 1
    """The file format version."""
    rules: list[Entry] = Field(min_length=1)
    """The rules, in report order."""


def load_rules(source: str) -> Rules:
    """Read a rules file.

    Raises:
        UsageError: the file cannot be read or is invalid; see `read_rules`.
    """
    return _rules_of(open_document(source, what="rules"))


def read_rules(text: str, *, source: str) -> Rules:
    """Read rules from text; messages refer to it as `source`.

    Raises:
        UsageError: the text is not YAML, or has an unknown key or a rule that cannot be evaluated; lists
            every mistake by line.
    """
    return _rules_of(read_document(text, source=source))


def rules_of_entries(
    entries: Sequence[Mapping[str, Any]], *, source: str, lines: Sequence[int] = ()
) -> Rules:
    """Read a recipe's rules, given each rule's line; without lines, messages show the rule's number.

    Raises:
        UsageError: a rule cannot be evaluated.
    """
    if not entries:
        return ()
    data = {"rules": [dict(entry) for entry in entries]}
    places = lines if len(lines) == len(entries) else range(1, len(entries) + 1)
    at: dict[Place, int] = {("rules", number): line for number, line in enumerate(places)}
    return _rules_of(Document(source=source, data=data, lines={(): 0, **at}, written={}))


def _rules_of(document: Document) -> Rules:
    if not isinstance(document.data, dict) or not document.data.get("rules"):
        cause = "there are no rules: a file without rules would pass everything"
        raise ConfigError([document.mistake((), cause, next_step="Write `rules:` and a list of rules")])
    _check_entries(document)
    read = read_as(RulesFile, document)
    mistakes = [m for number, entry in enumerate(read.rules) for m in _mistakes(entry, document, number)]
    if mistakes:
        raise ConfigError(mistakes)
    built = [_built(entry, document, number) for number, entry in enumerate(read.rules)]
    if mistakes := list(_doubled_names(built, document)):
        raise ConfigError(mistakes)
    return tuple(rule for of_entry in built for rule in of_entry)


def rule_sets() -> list[str]:
    """List the rule sets shipped with gpuproof, for `include`."""
    return sorted(place.name.removesuffix(".yaml") for place in SETS.iterdir())


def _check_entries(document: Document) -> None:
    """Validate each entry only against its own schema, so that mistakes are reported once."""
    assert isinstance(document.data, dict)
    entries = document.data["rules"]
    mistakes: list[Mistake] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        form = _form_of(entry)
        below = Document(
            source=document.source,
            data=entry,
            lines={
                place[2:]: line for place, line in document.lines.items() if place[:2] == ("rules", number)
            },
            written={},
        )
        try:
            read_as(form, below, model_at=_model_at if form is RuleEntry else None)
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise ConfigError(mistakes)


def _form_of(entry: Any) -> type[StrictModel]:
    keys = entry if isinstance(entry, dict) else {}
    return CheckEntry if "check" in keys else IncludeEntry if "include" in keys else RuleEntry


def _model_at(place: Place) -> type[StrictModel]:
    models: dict[Any, type[StrictModel]] = {"measure": MeasureMatch, "expect": Expected}
    return models.get(place[0], RuleEntry) if len(place) > 1 else RuleEntry


def _mistakes(entry: Entry, document: Document, number: int) -> Iterator[Mistake]:
    place: Place = ("rules", number)
    if isinstance(entry, IncludeEntry):
        if entry.include not in rule_sets():
            names = ", ".join(rule_sets())
            yield document.mistake(
                (*place, "include"), f"no rule set {entry.include!r}", next_step=f"Known: {names}"
            )
        return
    if isinstance(entry, CheckEntry):
        if entry.check not in check_names():
            step = f"Known: {', '.join(check_names())}"
            yield document.mistake((*place, "check"), f"no check {entry.check!r}", next_step=step)
        return
    expect = (*place, "expect")
    forms = entry.expect.forms
    if len(forms) != 1:
        forms_text = " and ".join(forms) or "nothing"
        cause = f"a rule must have one expectation, but this one has {forms_text}"
        yield document.mistake(expect, cause, next_step=f"Give one of {', '.join(FORMS)}")
        return
    for cause, step in _faults_of_form(entry, forms[0]):
        yield document.mistake((*expect, forms[0]), cause, next_step=step)
    for cause, step in _faults_of_keys(entry, forms[0]):
        yield document.mistake(expect, cause, next_step=step)
    for cause, step in _faults_of_measure(entry, forms[0]):
        yield document.mistake((*place, "measure"), cause, next_step=step)


def _faults_of_form(entry: RuleEntry, form: Form) -> Iterator[tuple[str, str]]:
    expect = entry.expect
    if form == "at_least" and expect.at_least is not None and expect.at_least <= 0:
        yield f"every value is at least {expect.at_least:g}: the rule could never fail", "Give a floor over 0"
    if form == "at_most" and expect.at_most is not None and expect.at_most < 0:
        yield f"no value is at most {expect.at_most:g}: the rule could never pass", "Give 0 or more"
    if isinstance(expect.baseline, float) and expect.baseline < 1 - MOST_TOLERANCE:
        yield f"{share(expect.baseline)} of the baseline would pass broken hardware", "Give 0.5 or more"
    number = expect.number if form in NUMBERS else None
    if number and number > 0 and expect.unit is not None:
        edge = edge_of(form, number, entry.tolerance if isinstance(entry.tolerance, float) else None)
        if reason := reason_no_limit(form, edge, entry.measure.name, expect.unit):
            yield reason, "Give a limit that can be both met and missed"
    if form == "reference" and expect.reference is not None and expect.reference != PUBLISHED:
        try:
            load_expectations().find(expect.reference)
        except UsageError as error:
            yield error.cause, error.next_step or ""
    if form in ("peers", "equal") and entry.each == "whole":
        yield (
            "`each: whole` is a single subject, with nothing to compare it with",
            "Write each: gpu, host or link",
        )


def _faults_of_keys(entry: RuleEntry, form: Form) -> Iterator[tuple[str, str]]:
    expect = entry.expect
    has_number = form in NUMBERS
    if has_number and expect.unit is None:
        yield "a number without a unit is not an expectation", "Add a unit that matches the measure"
    if expect.unit is not None and not has_number:
        yield f"unit has no meaning with {form}", "Remove it"
    if expect.ignoring and form != "reference":
        yield f"ignoring has no meaning with {form}", "Remove it"
    if form in ("peers", "equal") and entry.tolerance is not None:
        yield f"tolerance has no meaning with {form}", "Remove it: the error rate covers all subjects"
    if entry.contract and not has_number:
        yield f"contract has no meaning with {form}", "Remove it, or give at_least or at_most"
    if isinstance(expect.baseline, float) and entry.tolerance is not None:
        yield "the fraction of the baseline is already the tolerance", "Remove tolerance"


def _faults_of_measure(entry: RuleEntry, form: Form) -> Iterator[tuple[str, str]]:
    """Yield mistakes about built-in measures; a plug-in's measures are unknown until measured."""
    name, unit, units = entry.measure.name, entry.expect.unit, units_of_measure(entry.measure.name)
    if units is None and "stage" in entry.measure.labels:
        close = difflib.get_close_matches(name, UNITS, n=1)
        step = f"Did you mean {close[0]}?" if close else f"Known: {', '.join(UNITS)}"
        yield f"no stage measures {name!r}", step
    if form in NUMBERS and units is not None and unit is not None and not is_unit_of(unit, units):
        yield (
            f"{name} is in {' or '.join(units)}, but the number is in {unit}",
            "Give it in the measure's unit",
        )


def _doubled_names(built: Sequence[Sequence[Rule | CheckRule]], document: Document) -> Iterator[Mistake]:
    times = Counter(rule.name for of_entry in built for rule in of_entry)
    for number, of_entry in enumerate(built):
        for name in (rule.name for rule in of_entry if times[rule.name] > 1):
            yield document.mistake(("rules", number), f"{times[name]} rules are called {name!r}")


def _built(entry: Entry, document: Document, number: int) -> Rules:
    """Return the rules for an entry: a single rule, or the rules in the set that it includes."""
    if isinstance(entry, IncludeEntry):
        text = (SETS / f"{entry.include}.yaml").read_text(encoding="utf-8")
        return read_rules(text, source=f"rules {entry.include}")
    place = f"{document.source}:{document.line(('rules', number))}"
    if isinstance(entry, CheckEntry):
        return (CheckRule.model_construct(place=place, **dict(entry)),)
    return (Rule.model_construct(place=place, **dict(entry)),)


def rules_of_baseline(baseline: Baseline, *, share: float | None = None) -> Rules:
    """Return a required rule per measure in a baseline, so that a run is compared with all of them.

    `share` is the required fraction of the centre; None uses the baseline's own spread.
    """
    source = f"baseline {baseline.name}"
    return tuple(_rule_of(entry, source=source, share=share) for entry in baseline.entries)


def _rule_of(entry: BaselineEntry, *, source: str, share: float | None) -> Rule:
    labels = ", ".join(f"{name}={value}" for name, value in entry.labels.items())
    return Rule.model_construct(  # generated, so there is nothing to validate
        name=f"{entry.name} ({labels})" if labels else entry.name,
        place=source,
        each=entry.kind,
        measure=MeasureMatch.model_construct(name=entry.name, labels=entry.labels),
        expect=Expected.model_construct(baseline="measured" if share is None else share),
    )
