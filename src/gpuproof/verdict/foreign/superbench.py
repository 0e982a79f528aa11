"""SuperBench's rules of diagnosis: metrics by pattern, and a condition on each or on its share of a baseline.

A condition is read, never run: `lambda x:x<-0.05` is a floor of 0.95 of the baseline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gpuproof.config.yaml import Document, Place, read_document
from gpuproof.verdict.foreign.thresholds import Threshold, needing_some

CONDITION = re.compile(r"\s*lambda\s+x\s*:\s*x\s*([<>!=]=?)\s*(-?[\d.]+(?:[eE]-?\d+)?)\s*$")


def read_superbench(text: str, *, source: str) -> list[Threshold]:
    """Read the rules of functions `value` and `variance`; those that count others (`multi_rules`) are apart.

    Raises:
        UsageError: it is no YAML, or has no rules.
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
    """Return the condition, or why it is put to nothing."""
    if not metrics:
        return "it names no metric"
    return f"{broken[0]} is no pattern of metrics" if broken else str(rule.get("criteria"))
