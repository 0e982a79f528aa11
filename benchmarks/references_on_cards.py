"""How often do references accuse healthy and slow cards, and how many cards does READY require?

Draws fleets of 1, 2 and 8 cards of a board, and the reference's cards with them: the memory rate of each
differs by the spread given in the file (1, 3 or 5 %). They are judged as in a validation, by references that
could be shipped; these are drawn again until they agree with the independent value. For healthy fleets, it
prints how many are NOT-READY because a card fails, and how many are READY (every result passes and would
reveal a loss of 20 %). For fleets with one card slowed by the printed loss, it prints how many are found
because the card fails, and how many are missed (READY). Takes about two minutes; --quick takes a tenth of it.
With --all-rates, each card has three rates that vary this way, GEMMs (simulated, at three quarters of the
data sheet), memory and copies from the host. All of them must pass, and the first card has lost some of its
GEMM rate; this takes about two minutes.
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
    BoardReference,
    BoardReferences,
    judge_by_references,
    load_references,
    reason_provisional,
)

FLEETS, QUICK_FLEETS = 2000, 200
KNOWN = load_references()
TRUTH = next(one for one in KNOWN.references if one.quantity == "memory")
PRODUCTS = {"stage": "gemm", "at_once": False, "dtype": "bf16"}
SIMULATED = replace(
    TRUTH,
    quantity="products",
    labels=PRODUCTS,
    unit="FLOP/s",
    value=0.75 * 989.4e12,
    stack={**TRUTH.stack, "driver": "fake fake"},
)
"""Three quarters of the data sheet's dense bf16 rate."""
CARDS, OF_REFERENCE, SPREADS = (1, 2, 8), (1, 3, 10), (0.01, 0.03, 0.05)
COLUMNS = ("spread", "cards of reference", "cards", "loss shown", "NOT-READY", "READY", "found", "missed")


def truths(all_rates: bool) -> list[BoardReference]:
    """Return the distribution the cards are drawn from."""
    if not all_rates:
        return [TRUTH]
    of_board = [one for one in KNOWN.references if one.board == TRUTH.board]
    return [SIMULATED, *(replace(one, stack={**one.stack, "driver": "fake fake"}) for one in of_board)]


def known_with(
    of_board: list[BoardReference], spread: float, num_cards: int, draw: random.Random
) -> BoardReferences:
    """Return references as if this many cards with this spread had produced them."""
    cards = tuple(f"GPU-reference-{index}" for index in range(num_cards))
    quantities = tuple(replace(one, spread=spread) for one in KNOWN.quantities)
    by_name = {one.name: one for one in quantities}
    references: list[BoardReference] = []
    for truth in of_board:
        is_shipped = False
        while not is_shipped:
            value = truth.value * sum(draw.gauss(1, spread) for _ in cards) / num_cards
            reference = replace(truth, cards=cards, value=value)
            is_shipped = reason_provisional(reference, by_name[truth.quantity]) is None
        references.append(reference)
    return replace(KNOWN, quantities=quantities, references=tuple(references))


def fleet(
    of_board: list[BoardReference], spread: float, num_cards: int, draw: random.Random, *, loss: float
) -> FleetFacts:
    """Return the results of a fleet whose first card has lost a fraction of its first rate."""
    stack = of_board[0].stack
    vendor, _, version = stack["driver"].partition(" ")
    static = {
        "power_limit_w": 700.0,
        "clock_sm_application_mhz": 1980,
        "mig_mode": "disabled",
        "ecc_mode": "enabled",
        "pcie_gen_max": 5,
    }
    facts = {
        "torch": stack["torch"],
        "torch_cuda": stack["cuda"],
        "devices": [{"name": TRUTH.board}],
        "accelerators": {
            "devices": [{"static": static, "state": {"pcie_width": 16}}],
            "drivers": {vendor: {"version": version}},
        },
    }
    measures = [
        measure(
            truth,
            card,
            truth.value * draw.gauss(1, spread) * (1 - loss * (truth is of_board[0] and not card)),
        )
        for card in range(num_cards)
        for truth in of_board
    ]
    return FleetFacts(measures=measures, hosts={"a": facts})


def measure(truth: BoardReference, card: int, value: float) -> Measure:
    """Return one result for a reference's workload."""
    gpu, is_link = f"host/a/gpu/GPU-{card}", truth.quantity == "host link"
    ends = ("host/a", gpu) if truth.labels.get("kind") == "h2d" else (gpu, "host/a")
    return Measure(
        name="link bandwidth" if is_link else "throughput",
        subject=f"link/{'>'.join(ends)}" if is_link else gpu,
        labels=dict(truth.labels),
        value=value,
        unit=truth.unit,
        text=f"{value:.4g} {truth.unit}",
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
    """Return whether every result passed and would have revealed the loss to be detected."""
    return all(one.status == "PASS" and (one.minimum_detectable or 1.0) <= detects for one in outcomes)


def row(
    of_board: list[BoardReference], spread: float, of_reference: int, num_cards: int, num_fleets: int
) -> Iterator[str]:
    """Yield the columns of one line."""
    draw, detects = random.Random(1), ValidateOptions().detects
    accused = ready = found = missed = 0
    shown = 0.0
    for _ in range(num_fleets):
        known = known_with(of_board, spread, of_reference, draw)
        healthy = judged(known, fleet(of_board, spread, num_cards, draw, loss=0.0))
        fails = [outcome for outcome in healthy if outcome.status == "FAIL"]
        shown = max(outcome.minimum_detectable or 0.0 for outcome in healthy)
        accused += bool(fails)
        ready += is_ready(healthy, detects)
        slow = judged(known, fleet(of_board, spread, num_cards, draw, loss=shown))
        found += any(outcome.status == "FAIL" and "GPU-0" in outcome.subject for outcome in slow)
        missed += is_ready(slow, detects)
    yield from (share(spread), str(of_reference), str(num_cards), share(shown))
    yield from (share(number / num_fleets) for number in (accused, ready, found, missed))


def main() -> None:
    """Print the table."""
    num = QUICK_FLEETS if "--quick" in sys.argv else FLEETS
    of_board = truths("--all-rates" in sys.argv)
    print("  ".join(COLUMNS))
    for spread in SPREADS:
        for of_reference in OF_REFERENCE:
            for num_cards in CARDS:
                cells = row(of_board, spread, of_reference, num_cards, num)
                line = (cell.rjust(len(name)) for cell, name in zip(cells, COLUMNS, strict=True))
                print("  ".join(line), flush=True)


if __name__ == "__main__":
    main()
