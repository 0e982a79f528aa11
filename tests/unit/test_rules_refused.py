"""Rules that cannot judge: refused when they are read, or an ERROR when they meet what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet_by_hand import GEMM, gpu, hosts, judged, measured, rule
from gpuproof.base.errors import UsageError
from gpuproof.config.settings import ConfigError
from gpuproof.records.result import Measure
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules import load_rules, read_rules

REFUSED = {
    "empty": ("", "there are no rules"),
    "no rules": ("rules: []", "there are no rules"),
    "no list": ("rules: none", "expected a list"),
    "torn": ("rules: [", "not YAML"),
    "NaN": (rule("{at_least: .nan, unit: FLOP/s}"), "finite"),
    "infinite": (rule("{at_least: .inf, unit: FLOP/s}"), "finite"),
    "text": (rule("{at_least: fast, unit: FLOP/s}"), "expected a number"),
    "floor of 0": (rule("{at_least: 0, unit: FLOP/s}"), "could never fail"),
    "ceiling under 0": (rule("{at_most: -1, unit: s}"), "could never pass"),
    "no unit": (rule("{at_least: 5}"), "a number without a unit"),
    "nothing expected": (rule("{}"), "but this one has nothing"),
    "two expectations": (rule("{at_least: 5, unit: s, peers: true}"), "at_least and peers"),
    "unknown key": (rule("{at_lest: 5}"), "unknown key"),
    "unknown reference": (rule("{reference: all-reduce.8x-h200.8gib.azur}"), "no published value"),
    "unknown check": ("rules: [{check: exc}]", "no check 'exc'"),
    "unknown set": ("rules: [{include: environ}]", "no rule set 'environ'"),
    "a name of an included set": (
        "rules: [{include: environment}, {check: ecc}]",
        "2 rules are called 'ecc'",
    ),
    "include beside others": ("rules: [{include: environment, check: ecc}]", "unknown key"),
    "the whole against peers": (rule("{peers: true}", each="whole"), "nothing to compare it with"),
    "a share over 1": (rule("{baseline: 1.5}"), "1.0 or less"),
    "a tolerance that lets everything pass": (
        rule("{at_least: 5, unit: s}", more="    tolerance: 0.9\n"),
        "0.5 or less",
    ),
    "a tolerance of peers": (rule("{peers: true}", more="    tolerance: 0.1\n"), "no meaning with peers"),
    "one name twice": ("rules: [{check: ecc}, {check: ecc}]", "2 rules are called 'ecc'"),
    "another schema": ("schema_version: 2\nrules: [{check: ecc}]", "schema_version"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_judge_is_refused_with_its_line(name: str) -> None:
    text, cause = REFUSED[name]

    with pytest.raises(UsageError, match=cause) as caught:
        read_rules(text, source="rules.yaml")
    assert str(caught.value).count("rules.yaml:") >= 1


def test_every_mistake_is_told_at_once() -> None:
    text = rule("{at_least: 0, unit: FLOP/s}") + "  - {check: exc}\n"

    with pytest.raises(ConfigError) as caught:
        read_rules(text, source="rules.yaml")
    assert [mistake.line for mistake in caught.value.mistakes] == [5, 6]


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"absent\.yaml"):
        load_rules("absent.yaml")


ONE = FleetFacts(measures=[measured(gpu("a", 0), 7e14)], hosts=hosts("a", gpus=1))
NETWORK = FleetFacts(
    measures=[
        measured(
            "whole",
            90e9,
            name="all_reduce of 1 GiB",
            unit="B/s",
            labels={"operation": "all_reduce", "num_ranks": 4, "quantity": "bus bandwidth"},
        )
    ],
    hosts=hosts("a", "b"),
)
ALL_REDUCE = "{name: all_reduce of 1 GiB}"
CANNOT = {
    "no such measure": (
        ONE,
        rule("{at_least: 5, unit: FLOP/s}", measure="{name: speed}"),
        "no measure is called",
    ),
    "no such labels": (
        ONE,
        rule("{at_least: 5, unit: FLOP/s}", measure="{name: throughput, labels: {dtype: fp8}}"),
        "it matches nothing",
    ),
    "no such subjects": (ONE, rule("{at_least: 5, unit: FLOP/s}", each="link"), "measured only for gpu"),
    "nothing measured": (
        FleetFacts(measures=[]),
        rule("{at_least: 5, unit: FLOP/s}"),
        "nothing was measured",
    ),
    "another unit": (ONE, rule("{at_least: 600, unit: TFLOP/s}"), "the measure is in FLOP/s"),
    "a floor that nothing misses": (
        ONE,
        rule("{at_least: 2.333e+9, unit: FLOP/s}"),
        "below 20 % of 990 TFLOP/s, the data-sheet rate of NVIDIA H100 80GB HBM3",
    ),
    "a ceiling of a speed": (
        ONE,
        rule("{at_most: 7.1e+14, unit: FLOP/s}"),
        "at_most for throughput passes slow hardware: more is better",
    ),
    "over the board's peak": (ONE, rule("{at_least: 2.0e+15, unit: FLOP/s}"), "the maximum of NVIDIA H100"),
    "over the network cards": (
        NETWORK,
        rule("{at_least: 8.0e+10, unit: B/s}", each="whole", measure=ALL_REDUCE),
        "which 2 hosts with 50.0 GB/s of network bandwidth each cannot exceed",
    ),
    "no baseline": (ONE, rule("{baseline: 0.95}"), "no baseline was given"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_a_rule_that_cannot_judge_these_measures_is_an_error(name: str) -> None:
    facts, text, reason = CANNOT[name]

    found = judged(text, facts)

    assert [item.outcome.status for item in found] == ["ERROR"]
    assert reason in (found[0].outcome.reason or "")


def test_a_rule_without_its_measure_is_not_called_wrong_where_nothing_was_measured() -> None:
    text = rule("{at_least: 5, unit: FLOP/s}", measure="{name: speed}")
    steps = [judged(text, facts)[0].outcome.next_step for facts in (FleetFacts(measures=[]), ONE)]
    assert steps == ["Find the launch that failed, and finish the run with --resume", "Correct the rule"]


def test_two_hosts_may_exceed_their_cards_in_bus_bandwidth() -> None:
    """At two hosts with two ranks each the bus bandwidth may be 1.5 times what the cards do."""
    text = rule("{at_least: 7.0e+10, unit: B/s}", each="whole", measure=ALL_REDUCE)
    possible = FleetFacts(measures=[_with_value(NETWORK, 74e9)], hosts=NETWORK.hosts)

    assert [item.outcome.status for item in judged(text, possible)] == ["PASS"]


def _with_value(facts: FleetFacts, value: float) -> Measure:
    return replace(facts.measures[0], value=value)


@pytest.mark.parametrize(
    ("value", "other", "reason"),
    [
        (None, {"missing": "the launch failed"}, "the launch failed"),
        (None, {}, "no reason was given"),
        (float("nan"), {}, "nan is not a valid value"),
        (7e14, {"validity": "INVALID"}, "INVALID"),
        (3e15, {}, "is above"),
    ],
)
def test_a_figure_that_is_none_passes_nothing(
    value: float | None, other: dict[str, Any], reason: str
) -> None:
    facts = FleetFacts(measures=[measured(gpu("a", 0), value, **other)], hosts=hosts("a", gpus=1))

    found = judged(rule("{at_least: 6.0e+14, unit: FLOP/s}"), facts)

    assert [item.outcome.status for item in found] == ["ERROR"]
    assert reason in (found[0].outcome.reason or "")


def test_a_bandwidth_of_one_rank_is_none() -> None:
    labels = {"operation": "all_reduce", "num_ranks": 1, "quantity": "bus bandwidth"}
    alone = measured("whole", 9e9, name="bus bandwidth", unit="B/s", labels=labels)
    text = rule("{at_least: 8.0e+9, unit: B/s}", each="whole", measure="{name: bus bandwidth}")

    found = judged(text, FleetFacts(measures=[alone], hosts=hosts("a", gpus=1)))

    assert [item.outcome.status for item in found] == ["ERROR"]


@pytest.mark.parametrize(
    ("rates", "refused"),
    [
        ((5e11, 5e11, 1.2e12), [gpu("a", 2)]),  # 2.4 times the others: another data type, size or clock
        ((5e11, 5e11, 0.9e12), []),
        ((5e11, 1.2e12, 1.2e12), []),  # a slow one among others is judged by the limit
        ((5e11, 1.2e12), []),  # of two values, either may be wrong
    ],
)
def test_a_device_that_is_much_faster_than_its_equals_is_not_judged(
    rates: Sequence[float], refused: Sequence[str]
) -> None:
    measures = [measured(gpu("a", index), rate, labels=GEMM) for index, rate in enumerate(rates)]
    unknown = FleetFacts(measures=measures, hosts=hosts("a", gpus=len(rates), name="A board of tomorrow"))

    found = judged(rule("{at_least: 8.0e+11, unit: FLOP/s}"), unknown)

    assert [item.outcome.subject for item in found if item.outcome.status == "ERROR"] == refused
    assert all(
        "twice the median" in (item.outcome.reason or "")
        for item in found
        if refused == [item.outcome.subject]
    )


@pytest.mark.parametrize("odd", [{"value": float("nan")}, {"validity": "INVALID"}])
def test_values_that_are_none_do_not_count_among_equals(odd: dict[str, Any]) -> None:
    rates = [measured(gpu("a", index), 5e11, labels=GEMM) for index in range(4)]
    unknown = [replace(rates[0], **odd), replace(rates[1], **odd), *rates[2:]]
    facts = FleetFacts(measures=unknown, hosts=hosts("a", gpus=4, name="A board of tomorrow"))

    found = judged(rule("{at_least: 4.0e+11, unit: FLOP/s}"), facts)

    assert [item.outcome.status for item in found] == ["ERROR", "ERROR", "PASS", "PASS"]


def test_devices_without_a_name_are_not_compared() -> None:
    measures = [
        measured(gpu("a", index), rate, labels=GEMM) for index, rate in enumerate((5e11, 5e11, 1.2e12))
    ]
    facts = FleetFacts(measures=measures, hosts=hosts("a", gpus=3, name=None))

    found = judged(rule("{at_least: 4.0e+11, unit: FLOP/s}"), facts)

    assert [item.outcome.status for item in found] == ["PASS", "PASS", "PASS"]


def test_a_gpu_without_its_measure_is_an_error_of_its_own() -> None:
    facts = FleetFacts(measures=[measured(gpu("a", 0), 7e14, labels=GEMM)], hosts=hosts("a", gpus=2))

    found = judged(rule("{at_least: 6.0e+14, unit: FLOP/s}"), facts)

    assert {item.outcome.subject: item.outcome.status for item in found} == {
        gpu("a", 0): "PASS",
        gpu("a", 1): "ERROR",
    }


def test_the_example_of_the_page_can_judge() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "rules.md").read_text("utf-8")

    found = read_rules(page.partition("```yaml\n")[2].partition("```")[0], source="docs/guides/rules.md")

    assert len(found) == 5
