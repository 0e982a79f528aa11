"""Find thresholds that are useless as checks, based on their own file and published values.

Nothing here is specific to one board: a floor is compared with zero, with the comment that explains it, with
the other boards in its file, with the limits of network cards and data sheets, and with published values for
the same quantity.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from statistics import median
from typing import get_args

from gpuproof.base.units import memory, share, significant
from gpuproof.hardware.boards import board_names
from gpuproof.records.work.collective import Operation
from gpuproof.verdict.check import VACUOUS_OF_USUAL
from gpuproof.verdict.expectations import PublishedValue, load_expectations
from gpuproof.verdict.foreign.thresholds import Fault, Threshold, ThresholdFault
from gpuproof.verdict.rules.bounds import LARGE_BYTES, board_rates, bus_bound, highest_rate, types_of
from gpuproof.verdict.rules.model import is_unit_of, units_of_quantity
from gpuproof.verdict.rules.refusals import VACUOUS_SHARE, with_unit

MEANT = re.compile(r"to get ~?\s*([\d.]+)")
SAME = 0.05
"""Tolerance for rounding between two numbers that should be equal."""
SAME_EFFECT = 0.01
"""Maximum difference at which measurements with and without an option count as equal."""
APART = 3.0
"""If the floors of two data types that a matrix engine multiplies equally fast differ by this ratio, one of
the floors is wrong. Boards that are half as fast in bf16 as in fp16 (MI100) stay below it."""
SLIPPED = 0.1
"""Fraction of the usual value below which a digit is probably missing."""
CHIP = re.compile(r"\b(?:MI|[A-Z]{1,2})\d+[A-Z]?\b")
"""Matches the chip in a board's name, e.g. H200 in `NVIDIA H200 NVL`."""
PARTS = {"device memory": "memory", "host link": "host", "device link": "pair"}
"""For each quantity, the part of a board that determines it."""
TWO_WAYS = 2.0
"""Maximum ratio between the two directions of a host link."""
UNLIKE_WORK = 3
"""If this many kinds of workload have the same floor, none of them was measured."""
Rule = Callable[[Sequence[Threshold]], Iterator[tuple[Threshold, Fault, str]]]


def find_faults(thresholds: Sequence[Threshold]) -> list[ThresholdFault]:
    """Return the first fault of each faulty threshold, in file order."""
    faults: dict[int, tuple[Threshold, Fault, str]] = {}
    for rule in RULES:
        for threshold, fault, reason in rule(thresholds):
            faults.setdefault(id(threshold), (threshold, fault, reason))
    return [
        ThresholdFault(place=threshold.place, name=threshold.name, fault=fault, reason=reason)
        for threshold in thresholds
        if id(threshold) in faults
        for _, fault, reason in [faults[id(threshold)]]
    ]


def _nothing(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find thresholds without a number, and floors of 0."""
    for threshold in thresholds:
        if threshold.value is None or not isfinite(threshold.value):
            what = threshold.comment or "it has no number"
            yield threshold, "vacuous", f"nothing is compared: {what}"
        elif threshold.is_floor and threshold.value <= 0 and threshold.quantity != "value":
            yield threshold, "vacuous", "everything is at least 0"


def _contradicted(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find numbers that contradict the derivation in their own comment."""
    for threshold in thresholds:
        meant, written = MEANT.search(threshold.comment), threshold.conditions.get("as_written")
        if (
            meant
            and isinstance(written, (int, float))
            and abs(float(meant.group(1).rstrip(".")) / written - 1) > SAME
        ):
            yield (
                threshold,
                "contradictory",
                f"it is {written:g}, but the comment above it says {meant.group(1)}",
            )


def _out_of_proportion(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find memory floors that are out of proportion to the board's compute rate."""
    compute = {
        t.conditions.get("board"): t.value for t in thresholds if t.quantity == "sm stress" and t.value
    }
    ratios = {
        id(t): (t, t.value / flops)
        for t in thresholds
        if t.quantity == "device memory" and t.value and (flops := compute.get(t.conditions.get("board")))
    }
    if len(ratios) < UNLIKE_WORK:
        return
    middle = median(ratio for _, ratio in ratios.values())
    for threshold, ratio in ratios.values():
        if ratio < middle * SLIPPED:
            reason = (
                f"{with_unit(threshold.value or 0, 'B/s')} is {share(ratio / middle)} of the median of "
                "boards in this file, relative to their arithmetic rate: one of its two numbers is wrong"
            )
            yield threshold, "vacuous", reason


def _over_the_network(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find floors that network cards cannot reach, for traffic between hosts."""
    for threshold in thresholds:
        labels, value = threshold.conditions, threshold.value or 0.0
        cards, ranks = labels.get("cards_bytes_per_s"), labels.get("ranks_per_host")
        card = labels.get("card_bytes_per_s")
        if threshold.quantity == "network card" and card and value > card:
            yield threshold, "impossible", f"the card itself reaches {with_unit(card, 'B/s')}"
        if threshold.quantity == "network loopback" and cards and value > cards:
            yield threshold, "impossible", f"all cards together reach {with_unit(cards, 'B/s')}"
        if not cards or not ranks or not labels.get("num_hosts"):
            continue
        bound = bus_bound(
            threshold.quantity, num_hosts=labels["num_hosts"], ranks_per_host=ranks, cards_bytes_per_s=cards
        )
        if bound is not None and value > bound:
            reason = (
                f"{labels['num_hosts']} hosts with {with_unit(cards, 'B/s')} of cards each reach at most "
            )
            yield threshold, "impossible", reason + with_unit(bound, "B/s")


def _against_siblings(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find the lower of two values that should match on a board: bf16 and fp16, or both host directions."""
    pairs = (
        ("matrix multiply", "dtype", ("bf16", "fp16"), APART),
        ("host link", "direction", ("h2d", "d2h"), TWO_WAYS),
    )
    for quantity, label, values, apart in pairs:
        boards: defaultdict[str, dict[str, Threshold]] = defaultdict(dict)
        for threshold in thresholds:
            board = str(threshold.conditions.get("board", ""))
            if (
                threshold.quantity == quantity
                and threshold.value
                and threshold.conditions.get(label) in values
            ):
                boards[board][threshold.conditions[label]] = threshold
        for board, by_label in boards.items():
            if len(by_label) < 2:
                continue
            low, high = sorted(by_label.values(), key=lambda t: t.value or 0.0)
            if (high.value or 0.0) > apart * (low.value or 1.0):
                higher = f"{high.conditions[label]} of {board} has {with_unit(high.value or 0.0, high.unit)}"
                yield low, "contradictory", f"{higher}, but they should be about equal"


def _without_effect(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find values that are the same whether an option is on or off."""
    groups: defaultdict[tuple[object, ...], dict[str, Threshold]] = defaultdict(dict)
    for threshold in thresholds:
        labels = threshold.conditions
        if "option" in labels and "setting" in labels and threshold.value:
            work = (threshold.quantity, labels.get("board"), labels.get("size_bytes"), labels["option"])
            groups[work][labels["setting"]] = threshold
    for by_setting in groups.values():
        on, off = by_setting.get("on"), by_setting.get("off")
        if on and off and on.value and off.value and abs(off.value / on.value - 1) < SAME_EFFECT:
            what = f"{on.conditions['option']} on gives {with_unit(on.value, on.unit)}"
            yield off, "no effect", f"{what}, and the same when off: the switch did nothing"


def _placeholders(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find types of training that share a threshold although they cannot be equally fast."""
    groups: defaultdict[tuple[object, ...], list[Threshold]] = defaultdict(list)
    for threshold in thresholds:
        if threshold.quantity == "training" and threshold.value:
            key = (threshold.conditions.get("board"), threshold.unit, threshold.value)
            groups[key].append(threshold)
    for group in groups.values():
        work = {(t.conditions.get("model"), t.conditions.get("dtype")) for t in group}
        if len(work) >= UNLIKE_WORK:
            for threshold in group:
                reason = f"{significant(threshold.value or 0)} {threshold.unit} for {len(work)} kinds of work"
                yield threshold, "placeholder", reason


def _for_any_machine(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find floors for unspecified machines: too high for one machine, meaninglessly low for another."""
    for threshold in thresholds:
        if threshold.conditions.get("any_machine") and threshold.value:
            yield threshold, "vacuous", "it names no machine: one number cannot judge all of them"


def _against_published(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find floors for collectives within a host that exceed all published values, or have none."""
    for threshold in thresholds:
        labels = threshold.conditions
        chip, size = labels.get("chip"), labels.get("size_bytes")
        if (
            threshold.unit != "B/s"
            or labels.get("num_hosts") != 1
            or not chip
            or not size
            or not threshold.value
        ):
            continue
        published = [
            f for f in load_expectations().figures.values() if _is_of(f, threshold.quantity, str(chip), size)
        ]
        what = f"{threshold.quantity} of {memory(size)} inside a host of {chip}"
        if not published:
            yield threshold, "unverified", f"no published value of {what} is known"
        elif threshold.value > max(figure.value for figure in published):
            most = with_unit(max(figure.value for figure in published), "B/s")
            yield threshold, "beyond published", f"{what}: the highest published value is {most}"


def _unknown(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find nonexistent quantities, and units that belong to another quantity."""
    for threshold in thresholds:
        units = units_of_quantity(threshold.quantity)
        if units is None:
            yield threshold, "unknown", f"there is no quantity {threshold.quantity!r}"
        elif not is_unit_of(threshold.unit, units):
            reason = f"{threshold.quantity} is in {' or '.join(units)}, but this is in {threshold.unit!r}"
            yield threshold, "unknown", reason


def _against_boards(thresholds: Sequence[Threshold]) -> Iterator[tuple[Threshold, Fault, str]]:
    """Find floors that every board with the chip passes, or none does, using the same test as rules."""
    for threshold in thresholds:
        value = threshold.value or 0.0
        if not threshold.is_floor or value <= 0:
            continue
        if threshold.quantity == "share of a baseline" and value < VACUOUS_OF_USUAL:
            yield threshold, "vacuous", f"below {share(VACUOUS_OF_USUAL)} of a baseline is outright broken"
        boards = _boards_of(threshold)
        rates = board_rates(_parts_of(threshold), boards)
        labels = {**threshold.conditions, **({"num_ranks": None} if _is_collective(threshold) else {})}
        most = highest_rate(threshold.unit, labels, boards)
        edge = with_unit(value, threshold.unit)
        if most is not None and value > most[0]:
            yield (
                threshold,
                "impossible",
                f"{edge} is above {with_unit(most[0], threshold.unit)}, {most[1]}",
            )
        elif rates and value < VACUOUS_SHARE * min(rates)[0]:
            least = f"{with_unit(min(rates)[0], threshold.unit)}, the rate of {min(rates)[1]}"
            yield (
                threshold,
                "vacuous",
                f"{edge} is below {share(VACUOUS_SHARE)} of {least} by its data sheet",
            )


def _is_collective(threshold: Threshold) -> bool:
    return threshold.quantity in get_args(Operation) or threshold.quantity == "device link"


def _parts_of(threshold: Threshold) -> list[str]:
    labels = threshold.conditions
    if threshold.quantity == "matrix multiply":
        return types_of(labels.get("dtype"))
    if threshold.quantity in ("all_reduce", "all_gather", "reduce_scatter"):
        is_large = int(labels.get("size_bytes") or 0) >= LARGE_BYTES
        return ["all"] if is_large and labels.get("num_hosts") == 1 else []
    return [PARTS[threshold.quantity]] if threshold.quantity in PARTS else []


def _boards_of(threshold: Threshold) -> list[str]:
    """Return the known boards a threshold may apply to: by its board name, or else by its chip."""
    board, chip = (str(threshold.conditions.get(key) or "") for key in ("board", "chip"))
    if board in board_names():
        return [board]
    chips = {*CHIP.findall(board)[:1], *CHIP.findall(chip)}
    return [name for name in board_names() if chips & set(CHIP.findall(name)[:1])]


def _is_of(figure: PublishedValue, quantity: str, chip: str, size_bytes: int) -> bool:
    """Return whether a value was measured on this chip; `chip` may list several: H100/H200."""
    return (
        figure.kind == "measured"
        and figure.quantity == quantity
        and figure.chip in chip.split("/")
        and figure.num_hosts == 1
        and figure.size_bytes == size_bytes
    )


RULES: tuple[Rule, ...] = (
    _unknown,
    _nothing,
    _contradicted,
    _out_of_proportion,
    _over_the_network,
    _against_siblings,
    _without_effect,
    _placeholders,
    _for_any_machine,
    _against_published,
    _against_boards,
)
