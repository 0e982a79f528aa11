"""gpuproof's own measurements for a board name: a reference for a card without history or peers.

In: measures and data reported by hosts. Out: one outcome per value, checked against the references in
`references.toml`, which `gpuproof baseline export --reference` writes from runs. A value fails if it is lower
than chance allows for a healthy card. The file specifies the spread between healthy cards of one board type,
along with its source. The reference is itself the mean of n cards, so another card differs from it by spread
· √(1 + 1/n).

>>> sharp = sharpness(spread=0.03, num_cards=1, extra=0.0, error_rate=0.005)
>>> round(sharp.limit, 3), round(sharp.detectable, 3)
(0.109, 0.179)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import hypot, sqrt
from typing import Any

import tomllib

from gpuproof.base.errors import RecordError, UsageError
from gpuproof.base.files import packaged_text
from gpuproof.base.units import loss_shown, share
from gpuproof.hardware.boards import find_link_peak, find_memory_peak, find_peak
from gpuproof.records.codec import from_json
from gpuproof.records.outcome import Judged, Outcome, pass_or_fail, skipped
from gpuproof.records.result import Measure
from gpuproof.statistics.distributions import normal_quantile
from gpuproof.verdict.baseline import PCIE, UNCOMPARED, UNKNOWN, stack_of
from gpuproof.verdict.expectations import load_expectations
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules.model import REQUIRED_ERROR_RATE
from gpuproof.verdict.rules.outcomes import MISSED, reason_no_value
from gpuproof.verdict.rules.refusals import with_unit

SAME = ("gpu", "power_limit_w", "clocks", "mig", "ecc")
"""Conditions that must match those of the reference."""
OF_RATE = {"host link": (PCIE,)}
"""Additional conditions for individual rates."""
SAME_MAJOR = ("driver", "torch", "cuda")
"""Software with a major version that must not be older than the reference's."""
SIMULATED_DRIVER = "fake "
OTHER_CARDS = "Compare the card with its history: gpuproof baseline record NAME RUN…, then --baseline NAME"
AGAIN = "Find out why it is doubtful (--verbose), fix that, and measure again"
SLOW_CARD = "Check its clocks, temperature, power and other users; then contact the card's provider"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencedRate:
    """A rate that has references, and how much it differs between healthy cards of one board type."""

    name: str
    measure: str
    labels: Mapping[str, Any]
    """Labels that identify its measures. Their other labels describe the workload, and must match too."""
    spread: float
    """Standard deviation between healthy cards, as a fraction, set before any verdict."""
    source: str
    """Source of the spread, and how a published range was converted."""
    least_share: float
    most_share: float
    """The range of values from healthy cards, as fractions of the data-sheet value."""

    def picks(self, measure: Measure) -> bool:
        """Return whether a measure is of this quantity."""
        labels = measure.labels
        return measure.name == self.measure and all(labels.get(k) == v for k, v in self.labels.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardReference:
    """The result for one workload on cards of one board type, with its conditions."""

    board: str
    quantity: str
    labels: Mapping[str, Any]
    unit: str
    value: float
    """Mean of the cards' means."""
    cards: tuple[str, ...]
    """UUIDs of the cards."""
    runs: tuple[str, ...]
    """Run names, as returned by `name_of_run`."""
    day: str
    stack: Mapping[str, str]
    independent: tuple[str, ...] = ()
    """Keys of published values for the same quantity (`expectations.toml`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardReferences:
    """Contents of the references file."""

    quantities: tuple[ReferencedRate, ...]
    other_version: float
    """Additional standard deviation, as a fraction, when the driver or framework version differs."""
    other_version_source: str
    published_boards: Mapping[str, tuple[str, ...]]
    """Maps QUANTITY of BOARD to the board names that sources of published values use."""
    references: tuple[BoardReference, ...] = field(default_factory=tuple)

    def quantity_of(self, measure: Measure) -> ReferencedRate | None:
        """Return the quantity of a measure."""
        return next((quantity for quantity in self.quantities if quantity.picks(measure)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnReferences:
    references: tuple[BoardReference, ...] = ()


@cache
def load_references() -> BoardReferences:
    """Return the references that come with gpuproof."""
    return from_json(
        BoardReferences, tomllib.loads(packaged_text("hardware/references.toml")), place="references.toml"
    )


def references_with(text: str | None, *, place: str = "--references") -> BoardReferences:
    """Return the built-in references, after those in the user's file (`baseline export --reference`).

    Spreads always come from gpuproof.

    Raises:
        UsageError: the file cannot be read.
    """
    known = load_references()
    if text is None:
        return known
    try:
        document = tomllib.loads(text)
        own = from_json(_OwnReferences, document, place=place)
        unknown = {one.quantity for one in own.references} - {one.name for one in known.quantities}
        unknown |= document.keys() - {"references"}
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    except (ValueError, RecordError) as error:
        step = "Write it with gpuproof baseline export --reference RUN… >FILE"
        raise UsageError(f"it cannot be read: {error}", place=place, next_step=step) from error
    return replace(known, references=(*own.references, *known.references))


def name_of_run(description: Mapping[str, Any]) -> str:
    """Return an identifier for a run that does not depend on its directory name, which is not unique.

    >>> name_of_run({"run_id": "first", "created": "2026-11-27T07:13:05+00:00"})
    'first of 2026-11-27T07:13:05+00:00'
    """
    return f"{description['run_id']} of {description['created']}"


def labels_of_work(measure: Measure) -> dict[str, Any]:
    """Return the labels of a measure that describe the workload."""
    return {key: value for key, value in measure.labels.items() if key not in UNCOMPARED}


def card_of(subject: str) -> str | None:
    """Return the UUID of a subject that is a GPU, or that is a GPU's link to its host.

    >>> card_of("link/host/a>host/a/gpu/GPU-7f"), card_of("host/a")
    ('GPU-7f', None)
    """
    found = re.findall(r"/gpu/([^/>]+)", subject)
    return found[0] if len(found) == 1 else None


def stack_on(subject: str, facts: FleetFacts) -> dict[str, str | None]:
    """Return the conditions on a subject's host."""
    found = re.search(r"host/([^/>]+)", subject)
    hosts = facts.hosts if found is None else {k: v for k, v in facts.hosts.items() if k == found[1]}
    return stack_of(hosts)


def reason_provisional(reference: BoardReference, quantity: ReferencedRate) -> str | None:
    """Explain why a reference is only shown and not used: its card may itself have been slow.

    The value must be within the range of healthy cards relative to the data sheet, and within the spread of a
    value measured and published by others. A reference from simulated cards is used only for simulated cards,
    and no data sheet applies to it.
    """
    if reference.stack["driver"].startswith(SIMULATED_DRIVER):
        return None
    peak = _peak_of(reference)
    if peak is None:
        return f"the data sheet value of {reference.board} is unknown"
    if not quantity.least_share <= reference.value / peak <= quantity.most_share:
        return f"{share(reference.value / peak)} of the data sheet is outside the range of healthy cards"
    published = [load_expectations().find(key) for key in reference.independent]
    if any(abs(reference.value / figure.value - 1) <= quantity.spread for figure in published):
        return None
    return f"no independent value is within {share(quantity.spread)} of it"


def _peak_of(reference: BoardReference) -> float | None:
    if reference.unit == "FLOP/s":
        flops = find_peak(reference.board, str(reference.labels.get("dtype")))
        return None if flops is None else flops.flops_per_s
    is_link = reference.labels.get("stage") == "links"
    peak = find_link_peak(reference.board, "host") if is_link else find_memory_peak(reference.board)
    return None if peak is None else peak.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharpness:
    """The smallest loss that a reference detects."""

    limit: float
    """A value fails if it is below the reference by more than this fraction."""
    detectable: float
    """The loss, as a fraction, at which an otherwise average card fails in 95 % of cases."""


def sharpness(*, spread: float, num_cards: int, extra: float, error_rate: float) -> Sharpness:
    """Return the smallest detectable loss; `error_rate` applies to one value of a healthy card.

    `extra` is an additional standard deviation for differences that are not caused by the cards.
    """
    deviation = hypot(spread * sqrt(1 + 1 / num_cards), extra)
    limit = normal_quantile(1 - error_rate) * deviation
    return Sharpness(limit=limit, detectable=limit + normal_quantile(1 - MISSED) * deviation)


def judge_by_references(
    facts: FleetFacts, *, run: str, references: BoardReferences | None = None
) -> Iterator[Judged]:
    """Evaluate each value that has a reference for its board and for exactly the same workload.

    Taken together, the references wrongly fail a member of a healthy fleet with probability
    `REQUIRED_ERROR_RATE`. A reference is never used to evaluate the run or the card that it was made from.
    """
    known = references or load_references()
    pairs = [pair for measure in facts.measures if (pair := _found(measure, facts, known)) is not None]
    for measure, quantity, reference in pairs:
        stack = stack_on(measure.subject, facts)
        reason = _reason_against(measure, reference, quantity, stack, run)
        versions = _versions(stack, reference.stack)
        sharp = sharpness(
            spread=quantity.spread,
            num_cards=len(reference.cards),
            extra=known.other_version if versions else 0.0,
            error_rate=REQUIRED_ERROR_RATE / len(pairs),
        )
        yield Judged(
            name=f"reference of {reference.board}",
            outcome=skipped(reason, OTHER_CARDS if measure.validity == "VALID" else AGAIN, measure.subject)
            if reason is not None
            else _judged(measure, quantity, reference, versions, sharp),
            basis="absolute",
            measure=measure.name,
            labels={**measure.labels, "case": measure.case},
        )


def _found(
    measure: Measure, facts: FleetFacts, known: BoardReferences
) -> tuple[Measure, ReferencedRate, BoardReference] | None:
    quantity = known.quantity_of(measure)
    if quantity is None or reason_no_value(measure) is not None or card_of(measure.subject) is None:
        return None
    board, work = stack_on(measure.subject, facts)["gpu"], labels_of_work(measure)
    wanted = (board, quantity.name, measure.unit, work)
    for one in known.references:
        if (one.board, one.quantity, one.unit, dict(one.labels)) == wanted:
            return measure, quantity, one
    return None


def _reason_against(
    measure: Measure,
    reference: BoardReference,
    quantity: ReferencedRate,
    stack: Mapping[str, str | None],
    run: str,
) -> str | None:
    """Explain why a reference is not used for a value of the same workload on the same board."""
    if run in reference.runs or card_of(measure.subject) in reference.cards:
        return "the reference was made from this very run or card"
    if measure.validity != "VALID":
        return f"a value that is {measure.validity or 'of unknown validity'} is not compared with a reference"
    if (why := reason_provisional(reference, quantity)) is not None:
        return f"the reference is provisional: {why}"
    unlike = [*_mismatch(stack, reference)]
    return f"the reference has different conditions: {'; '.join(unlike)}" if unlike else None


def _mismatch(stack: Mapping[str, str | None], reference: BoardReference) -> Iterator[str]:
    of_reference = reference.stack
    is_vendor = (stack["driver"] or "").partition(" ")[0] == of_reference["driver"].partition(" ")[0]
    for key in (*SAME, *OF_RATE.get(reference.quantity, ()), *(() if is_vendor else ("driver",))):
        here, there = stack.get(key), of_reference.get(key)
        if here is None or here != there:
            yield f"{key} is {here or UNKNOWN} here but {there or UNKNOWN} there"
    for key in (key for key in SAME_MAJOR if is_vendor and key in of_reference):
        here, there = stack.get(key), of_reference[key]
        if here is None or _major(here) < _major(there):
            yield f"{key} is {here or UNKNOWN} here, older than {there}"


def _major(version: str) -> int:
    found = re.search(r"\d+", version)
    return int(found[0]) if found else 0


def _versions(stack: Mapping[str, str | None], reference: Mapping[str, str]) -> list[str]:
    """List the versions that differ from the reference's versions."""
    return [
        f"{key} {stack[key]}, not {reference[key]}"
        for key in SAME_MAJOR
        if key in reference and stack[key] != reference[key]
    ]


def _judged(
    measure: Measure,
    quantity: ReferencedRate,
    reference: BoardReference,
    versions: Sequence[str],
    sharp: Sharpness,
) -> Outcome:
    assert measure.value is not None
    num, limit = len(reference.cards), sharp.limit
    cards = f"our own runs on {num} card{'s' * (num > 1)}, {reference.day}"
    edge, expected = (
        with_unit(reference.value * share_of, measure.unit, beside=measure.text)
        for share_of in (1 - limit, 1)
    )
    spread = f"healthy cards differ by {share(quantity.spread)}"
    return pass_or_fail(
        measure.subject,
        measure.value >= reference.value * (1 - limit),
        measure.text,
        expected=f"≥ {edge}",
        source="; ".join([f"{cards}: {expected}, {spread}", loss_shown(sharp.detectable), *versions]),
        next_step=SLOW_CARD,
        responsible="vendor",
        measured_value=measure.value,
        expected_value=reference.value,
        tolerance=reference.value * limit,
        unit=measure.unit,
        minimum_detectable=sharp.detectable,
    )
