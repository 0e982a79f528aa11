"""Thresholds from other tools and from users, in base units, with the conditions in their files.

*Table*: CSV with the columns name, quantity, value, unit, and any known conditions: board, chip, dtype,
direction, operation, size_bytes, num_hosts, num_devices, ranks_per_host, cards_bytes_per_s, option, setting,
model, and comment. An empty cell means an unknown value. A row without board and chip applies to any machine.

*DCGM* (`diag-skus.yaml`): a list of boards, with a floor for each test. Bandwidths are in approximate MB/s,
compute rates in GFLOP/s, power in W. The comment above a number often says what was measured, and what
fraction of that measurement the number is.

*SuperBench*: metrics selected by pattern, each with a condition on its value or on its ratio to a baseline. A
condition is parsed, never run: `lambda x:x<-0.05` is a floor of 0.95 of the baseline.

*AzureHPC node health checks*: lines of `HOSTS || check arguments`, one file per virtual machine type. GPU
bandwidths are in GB/s, network card bandwidths in Gb/s. The upper bound for traffic over a machine's network
cards is taken from the lines that list these cards.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuproof.config.settings import ConfigError, Mistake
from gpuproof.config.yaml import Document, Place, read_document

NEEDED = ("name", "quantity", "value", "unit")
WHOLE_NUMBERS = ("size_bytes", "num_hosts", "num_devices", "ranks_per_host")
NUMBERS = ("cards_bytes_per_s",)
WORDS = ("board", "chip", "dtype", "direction", "operation", "option", "setting", "model")
COLUMNS = (*NEEDED, *WORDS, *WHOLE_NUMBERS, *NUMBERS, "comment")
TESTS = {
    "memory_bandwidth": ("minimum_bandwidth", "device memory", 1e6, "B/s"),
    "sm_stress": ("target_stress", "sm stress", 1e9, "FLOP/s"),
    "targeted_power": ("target_power", "power under load", 1.0, "W"),
}
"""Maps a test to its key, its quantity, and its unit in the file."""
CONDITION = re.compile(r"\s*lambda\s+x\s*:\s*x\s*([<>!=]=?)\s*(-?[\d.]+(?:[eE]-?\d+)?)\s*$")
LINE = re.compile(r"^\s*[^#|]+\|\|\s*(check_\w+)\s*(.*?)\s*$")
SIZE = re.compile(r"(\d+)([KMG])$")
POWERS = {"K": 2**10, "M": 2**20, "G": 2**30}
GIGABIT, GIGABYTE = 1e9 / 8, 1e9
Fault = Literal[
    "unknown",
    "vacuous",
    "impossible",
    "contradictory",
    "no effect",
    "placeholder",
    "beyond published",
    "unverified",
]


def read_table(text: str, *, source: str) -> list[Threshold]:
    """Read the rows.

    Raises:
        UsageError: a column is missing or unknown, or a cell is not a number.
    """
    rows = csv.DictReader(io.StringIO(text))
    header = rows.fieldnames or ()
    mistakes = [
        *(f"the column {name} is missing" for name in NEEDED if name not in header),
        *(f"unknown column {name}" for name in header if name not in COLUMNS),
    ]
    if mistakes:
        raise ConfigError(
            Mistake(place=f"{source}:1", line=1, cause=cause, next_step=f"Columns: {', '.join(COLUMNS)}")
            for cause in mistakes
        )
    thresholds = [_threshold(row, f"{source}:{rows.line_num}", rows.line_num) for row in rows]
    return needing_some(thresholds, source=source, form="a table")


def _threshold(row: dict[str, str | None], place: str, line: int) -> Threshold:
    def number(name: str) -> float | None:
        try:
            return float(row[name] or "") if row.get(name) else None
        except ValueError:
            cause = f"{row[name]!r} is not a number"
            raise ConfigError([Mistake(place=f"{place}: {name}", line=line, cause=cause)]) from None

    conditions: dict[str, object] = {name: row[name] for name in WORDS if row.get(name)}
    conditions |= {name: int(whole) for name in WHOLE_NUMBERS if (whole := number(name)) is not None}
    conditions |= {name: whole for name in NUMBERS if (whole := number(name)) is not None}
    return Threshold(
        place=place,
        name=row["name"] or "",
        quantity=row["quantity"] or "",
        value=number("value"),
        unit=row["unit"] or "",
        conditions={"any_machine": not (row.get("board") or row.get("chip")), **conditions},
        comment=row.get("comment") or "",
    )


def read_dcgm(text: str, *, source: str) -> list[Threshold]:
    """Read the minimum memory bandwidth, compute rate and power of every board.

    Raises:
        UsageError: the file is not YAML, or has no boards.
    """
    document, lines = read_document(text, source=source), text.splitlines()
    data = document.data
    boards = data.get("skus") if isinstance(data, dict) else None
    thresholds = [
        threshold
        for number, board in enumerate(boards if isinstance(boards, list) else ())
        if isinstance(board, dict)
        for threshold in _of_board(document, lines, number, board)
    ]
    return needing_some(thresholds, source=source, form="DCGM")


def _of_board(
    document: Document, lines: list[str], number: int, board: Mapping[str, Any]
) -> Iterator[Threshold]:
    name = f"{board.get('name')} ({board.get('id')})"
    for test, (key, quantity, scale, unit) in TESTS.items():
        options = board.get(test)
        if not isinstance(options, dict) or key not in options or options.get("is_allowed") is False:
            continue
        place: Place = ("skus", number, test, key)
        line, value = document.line(place), options[key]
        above = lines[line - 2].strip()
        yield Threshold(
            place=f"{document.source}:{line}",
            name=f"{name} {test}.{key}",
            quantity=quantity,
            value=value * scale if isinstance(value, (int, float)) else None,
            unit=unit,
            conditions={"board": name, "as_written": value},
            comment=above.removeprefix("#").strip() if above.startswith("#") else "",
        )


def read_superbench(text: str, *, source: str) -> list[Threshold]:
    """Read `value` and `variance` rules; rules that count violations (`multi_rules`) are separate.

    Raises:
        UsageError: the file is not YAML, or has no rules.
    """
    document = read_document(text, source=source)
    data: Any = document.data
    rules = ((data.get("superbench") or {}).get("rules") or {}) if isinstance(data, dict) else {}
    thresholds = [threshold for name, rule in rules.items() for threshold in _of_rule(document, name, rule)]
    return needing_some(thresholds, source=source, form="SuperBench")


def _of_rule(document: Document, name: str, rule: Any) -> Iterator[Threshold]:
    if not isinstance(rule, dict) or rule.get("function") not in ("value", "variance"):
        return
    place: Place = ("superbench", "rules", name)
    condition = CONDITION.match(str(rule.get("criteria")))
    sign, number = (condition.group(1), float(condition.group(2))) if condition else ("", None)
    metrics = [str(metric) for metric in rule.get("metrics") or ()]
    broken = [metric for metric in metrics if not _is_pattern(metric)]
    is_share = rule["function"] == "variance"
    value = number if number is None or not is_share else 1 + number
    yield Threshold(
        place=f"{document.source}:{document.line(place)}",
        name=name,
        quantity="share of a baseline" if is_share else "value",
        value=value if metrics and not broken else None,
        unit="1",
        is_floor=sign.startswith("<"),
        conditions={"metrics": tuple(metrics), "sign": sign},
        comment=_comment(rule, metrics, broken),
    )


def _is_pattern(metric: str) -> bool:
    try:
        re.compile(metric)
    except re.error:
        return False
    return True


def _comment(rule: Any, metrics: list[str], broken: list[str]) -> str:
    """Return the condition, or why it has no effect."""
    if not metrics:
        return "it names no metric"
    return f"{broken[0]} is not a pattern of metrics" if broken else str(rule.get("criteria"))


def read_aznhc(text: str, *, source: str) -> list[Threshold]:
    """Read the bandwidth floors.

    Raises:
        UsageError: the file contains none.
    """
    checks = [
        (number, match.group(1), match.group(2).split())
        for number, line in enumerate(text.splitlines(), 1)
        if (match := LINE.match(line))
    ]
    cards = [float(words[0]) * GIGABIT for _, check, words in checks if check == "check_hw_ib" and words]
    gpus = next((int(words[0]) for _, check, words in checks if check == "check_gpu_count" and words), None)
    thresholds = [
        threshold
        for number, check, words in checks
        for threshold in _thresholds(f"{source}:{number}", check, words, cards=cards, num_gpus=gpus)
    ]
    return needing_some(thresholds, source=source, form="AzNHC")


def _thresholds(
    place: str, check: str, words: list[str], *, cards: list[float], num_gpus: int | None
) -> Iterator[Threshold]:
    def threshold(quantity: str, at: int, unit_bytes: float, **conditions: object) -> Threshold:
        value = _number(words[at]) if len(words) > at else None
        return Threshold(
            place=place,
            name=" ".join([check, *words]),
            quantity=quantity,
            value=None if value is None else value * unit_bytes,
            unit="B/s",
            conditions={name: condition for name, condition in conditions.items() if condition is not None},
        )

    if check in ("check_gpu_bw", "check_cuda_bw"):
        yield threshold("host link", 0, GIGABYTE, direction="h2d")
        if check == "check_gpu_bw" and len(words) > 1:
            yield threshold("device link", 1, GIGABYTE)
    elif check == "check_nccl_allreduce":
        size = next((_size(word) for word in words if SIZE.match(word)), None)
        yield threshold("all_reduce", 0, GIGABYTE, num_hosts=1, num_devices=num_gpus, size_bytes=size)
    elif check == "check_nccl_allreduce_ib_loopback":
        yield threshold("network loopback", 0, GIGABYTE, cards_bytes_per_s=sum(cards) or None)
    elif check.startswith("check_ib_bw"):
        # The slowest card listed in the file sets the limit, because the check applies to each card.
        yield threshold("network card", 0, GIGABIT, card_bytes_per_s=max(cards, default=None))


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _size(word: str) -> int:
    match = SIZE.match(word)
    assert match is not None
    return int(match.group(1)) * POWERS[match.group(2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A threshold that a checker compares measurements with."""

    place: str
    """FILE:LINE."""
    name: str
    """The name in its file."""
    quantity: str
    """The quantity's name in published values: matrix multiply, device memory, host link, all_reduce,
    training …"""
    value: float | None
    """The value in `unit`; None if the file does not specify a value, so that nothing is compared."""
    unit: str
    is_floor: bool = True
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Known values of board, chip, dtype, direction, size_bytes, num_hosts, cards_bytes_per_s and so on."""
    comment: str = ""
    """The comment next to it in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdFault:
    """Reason why a threshold cannot be used for evaluation."""

    place: str
    name: str
    fault: Fault
    reason: str


def needing_some(thresholds: Sequence[Threshold], *, source: str, form: str) -> list[Threshold]:
    """Return the thresholds.

    Raises:
        UsageError: there are no thresholds; otherwise a file of the wrong type would be reported as free of
            errors.
    """
    if not thresholds:
        cause = f"no threshold was found: it is not a {form} file"
        raise ConfigError([Mistake(place=source, cause=cause, next_step="Choose another format with --from")])
    return list(thresholds)
