"""How often are healthy and slow cards accused by references, and how many cards does it take to be READY?

Fleets of 1, 2 and 8 cards of a board are drawn, and the cards of the reference with them: the memory of each
differs by the spread that the file states (1, 3 or 5 %). They are judged as a validation judges them, by
references that would be shipped: drawn again until they agree with the independent figure. Of healthy ones:
how many are NOT-READY, since a card fails, and READY: every figure passes and would show 20 %. Of those
with one card that has lost as much as is printed: how many are found, since it fails, and missed: READY.
About two minutes; --quick a tenth of it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace

from gpuproof.base.units import share
from gpuproof.records.outcome import Outcome
from gpuproof.records.result import Measure
from gpuproof.suites.validate.options import ValidateOptions
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.references import (
    BoardReferences,
    judge_by_references,
    load_references,
    reason_provisional,
)

FLEETS, QUICK_FLEETS = 2000, 200
TRUTH = next(one for one in load_references().references if one.quantity == "memory")
CARDS, OF_REFERENCE, SPREADS = (1, 2, 8), (1, 3, 10), (0.01, 0.03, 0.05)
COLUMNS = ("spread", "cards of reference", "cards", "loss shown", "NOT-READY", "READY", "found", "missed")


def known_with(spread: float, num_cards: int, draw: random.Random) -> BoardReferences:
    """Return the file's memory reference, as if so many cards of such a spread had made it."""
    known = load_references()
    quantity = replace(next(one for one in known.quantities if one.name == "memory"), spread=spread)
    cards = tuple(f"GPU-reference-{index}" for index in range(num_cards))
    while True:
        value = TRUTH.value * sum(draw.gauss(1, spread) for _ in cards) / num_cards
        reference = replace(TRUTH, cards=cards, value=value)
        if reason_provisional(reference, quantity) is None:
            return replace(known, quantities=(quantity,), references=(reference,))


def fleet(known: BoardReferences, num_cards: int, draw: random.Random, *, loss: float) -> FleetFacts:
    """Return the figures of a fleet, whose first card has lost a share of its memory's rate."""
    stack = TRUTH.stack
    static = {
        "power_limit_w": 700.0,
        "clock_sm_application_mhz": 1980,
        "mig_mode": "disabled",
        "ecc_mode": "enabled",
    }
    facts = {
        "torch": stack["torch"],
        "torch_cuda": stack["cuda"],
        "devices": [{"name": TRUTH.board}],
        "accelerators": {
            "devices": [{"static": static}],
            "drivers": {"nvidia": {"version": stack["driver"][7:]}},
        },
    }
    spread = known.quantities[0].spread
    rates = [TRUTH.value * draw.gauss(1, spread) * (1 - loss * (index == 0)) for index in range(num_cards)]
    measures = [measure(index, rate) for index, rate in enumerate(rates)]
    return FleetFacts(measures=measures, hosts={"a": facts})


def measure(index: int, value: float) -> Measure:
    """Return a figure of the work of the reference."""
    return Measure(
        name="throughput",
        subject=f"host/a/gpu/GPU-{index}",
        labels=dict(TRUTH.labels),
        value=value,
        unit=TRUTH.unit,
        text=f"{value:.4g} B/s",
        statistic="total",
        better="higher",
        validity="VALID",
    )


def judged(known: BoardReferences, facts: FleetFacts) -> list[Outcome]:
    """Judge a fleet."""
    outcomes = [item.outcome for item in judge_by_references(facts, run="a run", references=known)]
    assert all(outcome.status in ("PASS", "FAIL") for outcome in outcomes), outcomes[0].reason
    return outcomes


def is_ready(outcomes: list[Outcome], detects: float) -> bool:
    """Say whether every figure passed and would have shown the loss that is to be seen."""
    return all(one.status == "PASS" and (one.minimum_detectable or 1.0) <= detects for one in outcomes)


def row(spread: float, of_reference: int, num_cards: int, num_fleets: int) -> Iterator[str]:
    """Yield the columns of one line."""
    draw, detects = random.Random(1), ValidateOptions().detects
    accused = ready = found = missed = 0
    shown = 0.0
    for _ in range(num_fleets):
        known = known_with(spread, of_reference, draw)
        healthy = judged(known, fleet(known, num_cards, draw, loss=0.0))
        fails = [outcome for outcome in healthy if outcome.status == "FAIL"]
        shown = max(outcome.minimum_detectable or 0.0 for outcome in healthy)
        accused += bool(fails)
        ready += is_ready(healthy, detects)
        slow = judged(known, fleet(known, num_cards, draw, loss=shown))
        found += any(outcome.status == "FAIL" and outcome.subject.endswith("GPU-0") for outcome in slow)
        missed += is_ready(slow, detects)
    yield from (share(spread), str(of_reference), str(num_cards), share(shown))
    yield from (share(number / num_fleets) for number in (accused, ready, found, missed))


def main() -> None:
    """Print the table."""
    num = QUICK_FLEETS if "--quick" in sys.argv else FLEETS
    print("  ".join(COLUMNS))
    for spread in SPREADS:
        for of_reference in OF_REFERENCE:
            for num_cards in CARDS:
                cells = row(spread, of_reference, num_cards, num)
                line = (cell.rjust(len(name)) for cell, name in zip(cells, COLUMNS, strict=True))
                print("  ".join(line), flush=True)


if __name__ == "__main__":
    main()
