"""A number that no healthy machine misses, or none reaches, is refused whoever made it; its twin judges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_by_hand import H100, baseline, gpu, hosts, judged, measured, rule
from gpuproof.base.errors import UsageError
from gpuproof.records.outcome import Judged
from gpuproof.records.result import Measure
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.foreign import find_faults, read_thresholds
from gpuproof.verdict.rules import read_rules
from gpuproof.verdict.rules.model import speaks_of_speed
from gpuproof.verdict.rules.outcomes import FAR_UNDER_PEAK, judge_far_under_peak
from gpuproof.verdict.rules.refusals import healthy_reference

PRODUCT = {"workload": "gemm", "dtype": "bf16", "at_once": False, "m": 8192, "n": 8192, "k": 8192}
ALL_REDUCE = {
    **{"operation": "all_reduce", "num_ranks": 8, "size_bytes": 2**30},
    **{"quantity": "bus bandwidth", "num_devices": 8},
}
COPY = {"kind": "h2d", "host_memory": "pinned", "direction": "one_way", "size_bytes": 2**28}
DECLARED = {
    **{"flops_per_s": 2e10, "flops_16bit_per_s": 8e10, "memory_bytes_per_s": 1e10},
    **{"host_link_bytes_per_s": 2e9, "peer_link_bytes_per_s": 2e9},
}


def fleet(
    board: str, value: float, *, name: str = "throughput", unit: str = "FLOP/s", **other: Any
) -> FleetFacts:
    """Return a host with one board, of which one figure was measured."""
    subject = other.pop("subject", gpu("a", 0))
    measure = measured(subject, value, name=name, unit=unit, **{"labels": PRODUCT, **other})
    return FleetFacts(measures=[measure], hosts=hosts("a", gpus=1, name=board))


def simulated(value: float, **other: Any) -> FleetFacts:
    facts = fleet("Simulated GPU", value, **other)
    (host,) = facts.hosts.values()
    devices = [{**device, "simulated": True, "declared": DECLARED} for device in host["devices"]]
    return replace(facts, hosts={"a": {**host, "devices": devices}})


def told(facts: FleetFacts, expect: str, *, each: str = "gpu", more: str = "") -> Judged:
    """Judge one rule of the one measure."""
    (item,) = judged(rule(expect, each=each, measure=f"{{name: {facts.measures[0].name}}}", more=more), facts)
    return item


HOST = "host/a"
CASES: dict[str, tuple[FleetFacts, str, str, str, str]] = {
    # facts, of each, what is refused, what the reason says, and the twin that judges
    "a floor under a fifth of a known board's peak": (
        *(fleet(H100, 7e14), "gpu", "{at_least: 1.9e+14, unit: FLOP/s}"),
        *("below 20 % of 990 TFLOP/s", "{at_least: 2.0e+14, unit: FLOP/s}"),
    ),
    "a floor over its physics": (
        *(fleet(H100, 7e14), "gpu", "{at_least: 1.1e+15, unit: FLOP/s}"),
        *("above 1,071 TFLOP/s", "{at_least: 6.9e+14, unit: FLOP/s}"),
    ),
    "a floor of its memory": (
        *(
            fleet(H100, 3e12, unit="B/s", labels={"workload": "memory"}),
            "gpu",
            "{at_least: 6.6e+11, unit: B/s}",
        ),
        *("below 20 % of 3.35 TB/s", "{at_least: 6.8e+11, unit: B/s}"),
    ),
    "a floor of its link to the host": (
        *(
            fleet(
                H100, 5e10, name="link bandwidth", unit="B/s", labels=COPY, subject="link/host/a>host/a/gpu/0"
            ),
            "link",
        ),
        *("{at_least: 1.2e+10, unit: B/s}", "below 20 % of 64.0 GB/s", "{at_least: 1.3e+10, unit: B/s}"),
    ),
    "a floor of a large all-reduce": (
        *(fleet(H100, 4.8e11, name="bus bandwidth", unit="B/s", labels=ALL_REDUCE, subject=HOST), "host"),
        *("{at_least: 8.9e+10, unit: B/s}", "below 20 % of 450 GB/s", "{at_least: 4.7e+11, unit: B/s}"),
    ),
    "an all-reduce over what links carry": (
        *(fleet(H100, 4.8e11, name="bus bandwidth", unit="B/s", labels=ALL_REDUCE, subject=HOST), "host"),
        *("{at_least: 9.1e+11, unit: B/s}", "above 900 GB/s", "{at_least: 4.7e+11, unit: B/s}"),
    ),
    "a small all-reduce is known by what it does": (
        *(
            fleet(
                H100,
                2e9,
                name="bus bandwidth",
                unit="B/s",
                labels={**ALL_REDUCE, "size_bytes": 2**16},
                subject=HOST,
            ),
        ),
        *(
            "host",
            "{at_least: 0.9e+9, unit: B/s}",
            "a floor of 900 MB/s is meaningless when 2.00 GB/s is measured",
            "{at_least: 1.1e+9, unit: B/s}",
        ),
    ),
    "a floor of an unknown board": (
        *(fleet("Board X", 1e14), "gpu", "{at_least: 4.9e+13, unit: FLOP/s}"),
        *(
            "a floor of 49.0 TFLOP/s is meaningless when 100 TFLOP/s is measured",
            "{at_least: 5.1e+13, unit: FLOP/s}",
        ),
    ),
    "a floor of an unknown board over the best board": (
        *(fleet("Board X", 2e9), "gpu", "{at_least: 1.0e+18, unit: FLOP/s}"),
        *("the maximum of NVIDIA GB300, the best known board", "{at_least: 1.9e+9, unit: FLOP/s}"),
    ),
    "a bandwidth of an unknown board over the best board": (
        *(fleet("Board X", 4e11, name="bus bandwidth", unit="B/s", labels=ALL_REDUCE, subject=HOST), "host"),
        *(
            "{at_least: 4.0e+15, unit: B/s}",
            "above 1.80 TB/s, the maximum of NVIDIA GB300",
            "{at_least: 3.9e+11, unit: B/s}",
        ),
    ),
    "a floor of a simulated device": (
        *(simulated(7.8e10), "gpu", "{at_least: 1.5e+10, unit: FLOP/s}"),
        *("below 20 % of 80.0 GFLOP/s, the declared rate", "{at_least: 7.5e+10, unit: FLOP/s}"),
    ),
    "a floor over what is declared": (
        *(simulated(7.8e10), "gpu", "{at_least: 8.1e+10, unit: FLOP/s}"),
        *("the declared maximum of Simulated GPU", "{at_least: 7.5e+10, unit: FLOP/s}"),
    ),
    "a rate of training": (
        *(fleet(H100, 1000.0, unit="samples/s", labels={"workload": "resnet50"}), "gpu"),
        *(
            "{at_least: 499, unit: samples/s}",
            "a floor of 499 samples/s is meaningless when",
            "{at_least: 900, unit: samples/s}",
        ),
    ),
    "a ceiling of a step": (
        *(fleet(H100, 0.01, name="mean step", unit="s", labels={}, better="lower"), "gpu"),
        *("{at_most: 0.021, unit: s}", "at most 0.0210 s is meaningless when", "{at_most: 0.019, unit: s}"),
    ),
    "a floor of a step": (
        *(fleet(H100, 0.01, name="mean step", unit="s", labels={}, better="lower"), "gpu"),
        *(
            "{at_least: 0.009, unit: s}",
            "at_least for mean step passes slow hardware: less is better",
            "{at_most: 0.011, unit: s}",
        ),
    ),
    "a plug-in's rate": (
        *(fleet("Board X", 800.0, name="tokens of mine", unit="tokens/s", labels={}), "gpu"),
        *(
            "{at_least: 300, unit: tokens/s}",
            "a floor of 300 tokens/s is meaningless when",
            "{at_least: 700, unit: tokens/s}",
        ),
    ),
    "a plug-in's share": (
        *(fleet("Board X", 0.1, name="misses", unit="share", labels={}, better="lower"), "gpu"),
        *("{at_most: 0.1, unit: °C}", "it is in °C", "{at_most: 0.2, unit: share}"),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("more", ["", "    contract: true\n"])
def test_a_vacuous_number_is_an_error_and_its_twin_judges(name: str, more: str) -> None:
    facts, each, refused, reason, sound = CASES[name]

    item, twin = (told(facts, expect, each=each, more=more) for expect in (refused, sound))

    assert item.outcome.status == "ERROR"
    assert reason in (item.outcome.reason or "")
    assert twin.outcome.status == "PASS", twin.outcome.reason


def test_a_tolerance_counts_to_the_floor() -> None:
    """At least 3.9e14 less half of it is 1.95e14, under a fifth of 989.5 TFLOP/s (197.9)."""
    loose = told(fleet(H100, 7e14), "{at_least: 3.9e+14, unit: FLOP/s}", more="    tolerance: 0.5\n")
    tight = told(fleet(H100, 7e14), "{at_least: 3.9e+14, unit: FLOP/s}", more="    tolerance: 0.4\n")

    assert (loose.outcome.status, tight.outcome.status) == ("ERROR", "PASS")


def test_a_better_board_than_all_known_shows_it_by_what_it_does() -> None:
    assert told(fleet("Board X", 9e15), "{at_least: 8.0e+15, unit: FLOP/s}").outcome.status == "PASS"


def test_a_published_figure_of_a_slower_board_is_no_floor() -> None:
    """76.7 TFLOP/s of an MI100 is 8 % of what an H100 does, 224 of an A100 are 23 %."""
    keys = ("mi100.bf16.microsoft", "a100-pcie-40gb.bf16.8192.huggingface")
    expect = "{{reference: matrix-multiply.{}, ignoring: [device, tool, shape]}}"
    low, sound = (told(fleet(H100, 7e14), expect.format(key)).outcome for key in keys)

    assert (low.status, sound.status) == ("ERROR", "PASS")
    assert "below 20 %" in (low.reason or "")


def test_a_floor_under_half_of_the_past_is_none_however_little_is_measured_now() -> None:
    facts = fleet("Board X", 4e13)
    facts = replace(facts, baseline=baseline(fleet("Board X", 1e14)))

    low = told(facts, "{at_least: 3.9e+13, unit: FLOP/s}").outcome

    assert (low.status, told(facts, "{at_least: 6.0e+13, unit: FLOP/s}").outcome.status) == ("ERROR", "FAIL")
    assert "100 TFLOP/s is the value in baseline pod" in (low.reason or "")


def test_one_floor_for_types_of_other_speed_is_refused() -> None:
    """40 TFLOP/s judge fp32 of an H100 (67), and nothing of bf16 (989.5)."""
    facts = fleet(H100, 7e14)
    fp32 = measured(gpu("a", 0), 5e13, labels={**PRODUCT, "dtype": "fp32"})
    both = replace(facts, measures=[*facts.measures, fp32])
    matches = ("{name: throughput}", "{name: throughput, labels: {dtype: fp32}}")
    texts = [rule("{at_least: 4.0e+13, unit: FLOP/s}", measure=match) for match in matches]

    found = [[item.outcome.status for item in judged(text, both)] for text in texts]

    assert found == [["ERROR"], ["PASS"]]


def test_what_is_healthy_is_the_past_else_what_was_published_else_the_data_sheet() -> None:
    past = replace(fleet(H100, 6e14), baseline=baseline(fleet(H100, 7e14)))
    cases = {
        "baseline pod": past,
        "as of": fleet(H100, 6e14),
        "data-sheet rate": fleet(H100, 6e14, labels={**PRODUCT, "m": 4096}),
        "declared": simulated(6e10),
        "none": fleet("Board X", 6e14),
    }

    found = {name: healthy_reference(facts.measures[0], facts) for name, facts in cases.items()}

    assert {name: reference and reference[0] for name, reference in found.items()} == {
        **{"baseline pod": 7e14, "as of": 7.3e14, "data-sheet rate": 9.895e14, "declared": 8e10},
        "none": None,
    }
    assert all(reference is None or name in reference[1] for name, reference in found.items())


NEVER = {
    "any drift": ("step-time drift", "at_most: 1000", "1", "at_most: 0.2"),
    "any spread": ("spread of launches", "at_most: 1.5", "1", "at_most: 0.1"),
    "wrong values": ("wrong values", "at_most: 1.0e+9", "1", "at_most: 0"),
    "all utilisation": ("utilisation", "at_most: 100", "%", "at_least: 90"),
    "too much utilisation": ("utilisation", "at_least: 101", "%", "at_least: 90"),
    "any temperature": ("temperature", "at_most: 200", "°C", "at_most: 80"),
    "any share": ("waited for data", "at_most: 1", "share", "at_most: 0.1"),
    "any efficiency": ("scaling efficiency", "at_least: 1.2", "1", "at_least: 0.9"),
}


@pytest.mark.parametrize("name", NEVER)
def test_what_nothing_misses_is_refused_when_it_is_read(name: str) -> None:
    measure, refused, unit, sound = NEVER[name]
    text = rule(f"{{{refused}, unit: '{unit}'}}", measure=f"{{name: {measure}}}")

    with pytest.raises(UsageError, match=r"rules\.yaml:5: rules\.0\.expect|rules\.yaml:5: rules\.expect"):
        read_rules(text, source="rules.yaml")
    assert read_rules(text.replace(refused, sound), source="rules.yaml")


@pytest.mark.parametrize(
    ("measure", "expect", "cause"),
    [
        ("{name: throughput}", "{at_least: 5, unit: °C}", "throughput is in …/s"),
        ("{name: temperature}", "{at_most: 80, unit: FLOP/s}", "temperature is in °C"),
        ("{name: bus bandwidth}", "{at_least: 5, unit: '1'}", "bus bandwidth is in B/s"),
        ("{name: p50 step}", "{at_most: 5, unit: ms}", "p50 step is in s"),
        ("{name: all_reduce of 1 GiB}", "{at_least: 5, unit: Gb/s}", "is in B/s"),
        ("{name: flux capacitance, labels: {stage: gemm}}", "{at_least: 5, unit: B/s}", "no stage measures"),
        ("{name: throughput}", "{baseline: 0.4}", "would pass broken"),
        ("{name: throughput}", "{peers: true}\n    contract: true", "contract has no meaning"),
    ],
)
def test_units_of_another_quantity_and_names_that_there_are_not_are_refused(
    measure: str, expect: str, cause: str
) -> None:
    with pytest.raises(UsageError, match=cause):
        read_rules(rule(expect, measure=measure), source="rules.yaml")


def test_a_plug_ins_measure_is_read_and_judged_when_it_is_there() -> None:
    text = rule("{at_least: 5, unit: jigowatt}", measure="{name: flux capacitance}")
    facts = fleet("Board X", 6.0, name="flux capacitance", unit="jigowatt", labels={})

    assert judged(text, facts)[0].outcome.status == "PASS"
    assert "no measure is called" in (judged(text, fleet(H100, 7e14))[0].outcome.reason or "")


@pytest.mark.parametrize(
    ("name", "unit", "better", "is_speed"),
    [
        *(("throughput", "FLOP/s", "higher", True), ("throughput", "samples/s", "higher", True)),
        *(
            ("mean step", "s", "lower", True),
            ("MFU", "share", None, True),
            ("of mine", "tokens/s", "higher", True),
        ),
        *(("utilisation", "%", "higher", False), ("temperature", "°C", "lower", False)),
        *(("wrong values", "1", "lower", False), ("step-time drift", "1", "lower", False)),
        *(("scaling efficiency", "1", "higher", False), ("peak memory", "bytes", None, False)),
        *(("power", "W", "lower", False), ("energy", "J/sample", "lower", False)),
    ],
)
def test_what_speaks_of_speed(name: str, unit: str, better: Any, is_speed: bool) -> None:
    measure = Measure(name=name, value=1.0, unit=unit, text="1", better=better)
    assert speaks_of_speed(measure) == is_speed


def test_a_known_board_under_a_third_of_its_peak_fails_without_any_rule() -> None:
    """A third of 989.5 TFLOP/s is 329.8: 2 GFLOP/s and 329 fail, 331 does not."""
    subjects = [
        [item.outcome.subject for item in judge_far_under_peak(fleet(H100, value))]
        for value in (2e9, 3.29e14, 3.31e14)
    ]
    (item,) = judge_far_under_peak(fleet(H100, 2e9))

    assert subjects == [[gpu("a", 0)], [gpu("a", 0)], []]
    assert (item.name, item.outcome.status, item.is_required) == (FAR_UNDER_PEAK, "FAIL", True)
    assert (item.basis, item.outcome.expected) == ("absolute", "a third of 990 TFLOP/s or more")


@pytest.mark.parametrize(
    "facts",
    [
        fleet("Board X", 2e9),
        fleet(H100, 2e9, labels={**PRODUCT, "k": 1024}),
        fleet(H100, 2e9, labels={**PRODUCT, "dtype": "fp64"}),
        fleet(H100, 2e9, name="model FLOP/s"),
        fleet(H100, 2e9, validity="INVALID"),
        fleet(H100, 3e2, unit="products/s"),
    ],
)
def test_what_is_no_large_product_of_a_known_board_is_not_held_to_its_peak(facts: FleetFacts) -> None:
    assert judge_far_under_peak(facts) == []


HEADER = "name,quantity,value,unit,board,chip,dtype,size_bytes,num_hosts\n"
IMPORTED = {
    "over any board": (
        "matrix multiply,5e18,FLOP/s,MI999,,bf16,,",
        "impossible",
        "matrix multiply,6e14,FLOP/s,H200,,bf16,,",
    ),
    "over its board": (
        "device memory,4.9e12,B/s,H200,,,,",
        "impossible",
        "device memory,4.0e12,B/s,H200,,,,",
    ),
    "memory of a tape": (
        "device memory,2.3e9,B/s,NVIDIA H200,,,,",
        "vacuous",
        "device memory,1e12,B/s,NVIDIA H200,,,,",
    ),
    "products": (
        "matrix multiply,1e13,FLOP/s,H100 SXM,,bf16,,",
        "vacuous",
        "matrix multiply,2e14,FLOP/s,H100 SXM,,bf16,,",
    ),
    "a link": ("host link,1e9,B/s,A100 80GB,,,,", "vacuous", "host link,2e10,B/s,A100 80GB,,,,"),
    "an all-reduce": (
        "all_reduce,5e10,B/s,x,H200,,17179869184,1",
        "vacuous",
        "all_reduce,4e11,B/s,x,H200,,17179869184,1",
    ),
    "a quantity that there is not": (
        "flux capacitance,3,B/s,H200,,,,",
        "unknown",
        "device memory,4e12,B/s,H200,,,,",
    ),
    "another unit": ("device memory,4e12,FLOP/s,H200,,,,", "unknown", "training,400,samples/s,H200,,,,"),
    "a chip of another name": ("device memory,5e12,B/s,GH200,,,,", None, "device memory,4e12,B/s,GH200,,,,"),
}


@pytest.mark.parametrize("name", IMPORTED)
def test_thresholds_of_others_are_held_to_the_same_test(name: str) -> None:
    refused, fault, sound = IMPORTED[name]
    faults = [
        [item.fault for item in find_faults(read_thresholds(f"{HEADER}t,{row}\n", "table", source="t.csv"))]
        for row in (refused, sound)
    ]
    assert faults == [[] if fault is None else [fault], []]
