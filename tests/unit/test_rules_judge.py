"""Rules hold figures against numbers, published figures, a baseline and each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from fleet_by_hand import (
    GEMM,
    baseline,
    gpu,
    host_facts,
    hosts,
    judged,
    measured,
    rule,
    statuses,
)
from gpuproof.base.units import share
from gpuproof.records.result import Measure
from gpuproof.verdict.baseline import Baseline
from gpuproof.verdict.expectations import load_expectations
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rules import judge_rules, read_rules

FLOOR = "{at_least: 7.0e+14, unit: FLOP/s}"


def fleet(*values: float, spread: float | None = None) -> FleetFacts:
    """Return hosts a, b … with two GPUs each, of these values."""
    names = "abcdefgh"[: (len(values) + 1) // 2]
    measures = [measured(gpu(names[i // 2], i % 2), value, spread=spread) for i, value in enumerate(values)]
    return FleetFacts(measures=measures, hosts=hosts(*names))


@pytest.mark.parametrize(
    ("value", "spread", "tolerance", "expected"),
    [
        (7.1e14, None, "", "PASS"),
        (6.9e14, None, "", "FAIL"),
        (6.9e14, None, "0.05", "PASS"),
        (6.6e14, None, "0.05", "FAIL"),
        (7.0e14, None, "", "PASS"),
        (7.5e14, 0.02, "", "PASS"),
        (6.5e14, 0.02, "", "FAIL"),
        (7.05e14, 0.02, "", "ERROR"),  # the limit lies inside the interval
        (6.95e14, 0.02, "measured", "PASS"),
        (6.5e14, 0.02, "measured", "FAIL"),
        (6.95e14, None, "measured", "ERROR"),  # no spread was measured
        (6.95e14, 0.4, "measured", "ERROR"),  # one that would let pass a GPU at half speed
    ],
)
def test_a_floor_is_held_against_the_whole_interval(
    value: float, spread: float | None, tolerance: str, expected: str
) -> None:
    facts = FleetFacts(measures=[measured(gpu("a", 0), value, spread=spread)], hosts=hosts("a", gpus=1))
    more = f"    tolerance: {tolerance}\n" if tolerance else ""

    assert statuses(judged(rule(FLOOR, more=more), facts)) == {gpu("a", 0): expected}


def test_a_ceiling_is_the_other_way_round() -> None:
    wrong = [
        measured(gpu("a", index), count, name="wrong values", unit="1", labels={}, better="lower")
        for index, count in enumerate((0.0, 3.0))
    ]
    text = rule("{at_most: 0, unit: '1'}", measure="{name: wrong values}")

    found = statuses(judged(text, FleetFacts(measures=wrong, hosts=hosts("a"))))

    assert found == {gpu("a", 0): "PASS", gpu("a", 1): "FAIL"}


def test_a_limit_is_written_as_its_figure_is() -> None:
    drift = measured(gpu("a", 0), -0.359, name="step-time drift", unit="1", labels={}, better="lower")
    text = rule("{at_most: 0.2, unit: '1'}", measure="{name: step-time drift}")
    facts = FleetFacts(measures=[replace(drift, text="-35.9%")], hosts=hosts("a"))
    told = [(item.outcome.measured, item.outcome.expected) for item in judged(text, facts)]
    assert ("-35.9%", "≤ 20 %") in told


def test_an_outcome_says_what_it_could_have_missed_and_who_acts() -> None:
    facts = FleetFacts(measures=[measured(gpu("a", 0), 6.0e14, spread=0.01)], hosts=hosts("a", gpus=1))

    (found,) = judged(rule(FLOOR, more="    tolerance: 0.05\n    responsible: vendor\n"), facts)

    assert found.basis == "absolute"
    assert found.outcome.responsible == "vendor"
    # an H200 does 989.5e12 by its data sheet; the interval's half and 1.645 of its 1.96 deviations lie below
    edge, half = 0.95 * 7e14, 0.01 * 6e14
    lowest = edge - half * (1 + 1.645 / 1.96)
    assert found.outcome.minimum_detectable == pytest.approx(1 - lowest / 989.5e12, abs=1e-4)
    assert found.outcome.source == "rules.yaml:2"


def test_rules_say_whether_they_are_required() -> None:
    facts = fleet(7.5e14, 7.5e14)

    (first, _) = judged(rule(FLOOR, more="    required: false\n"), facts)

    assert not first.is_required


# Published figures


TRIAD = "device-memory.triad.a100-sxm-80gb.azure"
MEMORY = "{name: throughput, labels: {workload: memory}}"


def memory_of(name: str, value: float, **labels: object) -> FleetFacts:
    measure = measured(gpu("a", 0), value, unit="B/s", labels={"workload": "memory", **labels})
    return FleetFacts(measures=[measure], hosts=hosts("a", gpus=1, name=name))


def test_a_published_figure_is_of_its_own_tool_board_and_operation() -> None:
    text = rule(f"{{reference: {TRIAD}}}", measure=MEMORY)
    a100 = "NVIDIA A100-SXM4-80GB"
    reasons = {
        "tool is gpuproof": memory_of(a100, 1.7e12, operation="triad"),
        "device is NVIDIA H100 80GB HBM3": memory_of("NVIDIA H100 80GB HBM3", 1.7e12, tool="BabelStream"),
        "operation is unknown": memory_of(a100, 1.7e12, tool="BabelStream"),
    }
    for reason, facts in reasons.items():
        (found,) = judged(text, facts)
        assert found.outcome.status == "ERROR"
        assert reason in (found.outcome.reason or "")


@pytest.mark.parametrize(("value", "expected"), [(1.7e12, "PASS"), (1.62e12, "PASS"), (1.5e12, "SKIP")])
def test_a_published_figure_has_the_tolerance_of_its_table_and_fails_nobody(
    value: float, expected: str
) -> None:
    facts = memory_of("NVIDIA A100-SXM4-80GB", value, operation="triad")

    (found,) = judged(rule(f"{{reference: {TRIAD}, ignoring: [tool]}}", measure=MEMORY), facts)

    assert found.outcome.status == expected
    if expected == "SKIP":
        assert "duration and power are unknown" in (found.outcome.reason or "")
        return
    assert "ignoring its tool" in (found.outcome.source or "")
    assert found.outcome.tolerance == pytest.approx(0.05 * 1.7e12)


def product_of(name: str, value: float, edge: int = 8192) -> FleetFacts:
    labels = {"workload": "gemm", "dtype": "bf16", "m": edge, "n": edge, "k": edge}
    return FleetFacts(
        measures=[measured(gpu("a", 0), value, labels=labels)], hosts=hosts("a", gpus=1, name=name)
    )


A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (product_of(H100, 7.2e14), "PASS"),  # 730 TFLOP/s of the same type and shape, less 5 %
        (product_of(H100, 6.9e14), "SKIP"),
        (memory_of(A100, 1.65e12, pattern="triad"), "PASS"),  # 1.70 TB/s
        (memory_of(A100, 1.55e12, pattern="triad"), "SKIP"),
        (memory_of(A100, 1.35e12, pattern="copy"), "PASS"),  # the lowest of 1.37 and 1.61 TB/s
        (product_of(H100, 7.2e14, edge=4096), "ERROR"),  # of another shape nothing was published
        (product_of("NVIDIA H100 80GB HBM3e", 7.2e14), "ERROR"),  # a name is known whole or not at all
        (memory_of(A100, 1.65e12), "ERROR"),
    ],
)
def test_whatever_was_published_of_the_same_thing(facts: FleetFacts, expected: str) -> None:
    text = rule("{reference: published, ignoring: [tool]}", measure="{name: throughput}")

    (found,) = judged(text, facts)

    assert found.outcome.status == expected
    if expected == "ERROR":
        assert "unknown: no published result matches" in (found.outcome.reason or "")
    else:
        assert "ignoring its tool" in (found.outcome.source or found.outcome.reason or "")


def test_what_others_measured_with_their_tools_is_not_ours_by_itself() -> None:
    (found,) = judged(rule("{reference: published}", measure="{name: throughput}"), product_of(H100, 7.2e14))
    assert found.outcome.status == "ERROR"


def test_the_table_of_published_figures_is_whole() -> None:
    figures = load_expectations().figures.values()

    assert len(figures) > 400
    assert all(figure.value > 0 and figure.source and figure.date for figure in figures)
    assert {figure.unit for figure in figures} <= {
        *("FLOP/s", "OP/s", "B/s", "s", "W", "samples/s", "tokens/s")
    }


# A fleet's own figures


HEALTHY = (7.00e14, 7.03e14, 6.98e14, 7.02e14, 6.97e14, 7.01e14, 6.99e14, 7.00e14)


def runs_of(facts: FleetFacts, *factors: float) -> list[list[Measure]]:
    """Return further runs of the same subjects, each by its factor."""
    return [[replace(m, value=(m.value or 0.0) * by) for m in facts.measures] for by in factors]


def recorded(*values: float) -> Baseline:
    """Return the baseline of three runs of one day, 0.1 % apart."""
    return baseline(fleet(*values), *runs_of(fleet(*values), 1.001, 0.999))


def held(*values: float, expect: str = "{baseline: measured}") -> dict[str, str]:
    return statuses(judged(rule(expect), replace(fleet(*values), baseline=recorded(*HEALTHY))))


def test_a_slow_gpu_is_found_by_its_own_past() -> None:
    found = held(*HEALTHY[:7], 0.92 * HEALTHY[7])

    assert found.pop(gpu("d", 1)) == "FAIL"
    assert set(found.values()) == {"PASS"}


def test_the_limit_of_an_own_past_is_by_hand() -> None:
    """Sessions differ by 1 %: with that of the baseline by √2 %. Runs by 0.1 %, of 16 degrees of freedom.

    Of 0.5 % of fleets 0.9 · 0.005 / 8 are one figure's: 3.256 standard deviations, and 4.03 of those degrees;
    √((3.256 · 1.4142 %)² + (4.03 · 0.1155 %)²) = 4.628 %, and 1.645 · 1.419 % more that chance may hide.
    """
    facts = replace(fleet(*HEALTHY), baseline=recorded(*HEALTHY))

    (first, *_) = judged(rule("{baseline: measured}"), facts)

    assert first.outcome.tolerance == pytest.approx(0.04628 * HEALTHY[0], rel=0.002)
    assert first.outcome.minimum_detectable == pytest.approx(0.04628 + 0.02334, rel=0.002)
    assert "its own history: 3 runs on 1 day" in (first.outcome.expected or "")


def test_a_gpu_that_was_always_slow_is_held_against_its_own_past_and_the_fleets() -> None:
    """A tenth slower in all runs than others that differ by 0.3 %."""
    slow = (*HEALTHY[:7], 0.9 * HEALTHY[7])
    always = replace(fleet(*slow), baseline=recorded(*slow))
    new = replace(fleet(*HEALTHY[:7], 0.5 * HEALTHY[7]), baseline=recorded(*slow))

    assert statuses(judged(rule("{baseline: measured}"), always))[gpu("d", 1)] == "PASS"
    assert statuses(judged(rule("{baseline: measured}"), new))[gpu("d", 1)] == "FAIL"


@pytest.mark.parametrize(("factor", "expected"), [(0.97, "PASS"), (0.7, "FAIL")])
def test_a_gpu_without_a_past_is_held_against_the_fleets_figures_alone(factor: float, expected: str) -> None:
    facts = fleet(*HEALTHY)
    kept = recorded(*HEALTHY)
    *rest, last = facts.measures
    exchanged = [*rest, replace(last, subject="host/d/gpu/GPU-new", value=factor * (last.value or 0))]

    found = judged(rule("{baseline: measured}"), replace(facts, measures=exchanged, baseline=kept))

    (new,) = (item.outcome for item in found if item.outcome.subject == "host/d/gpu/GPU-new")
    (old, *_) = (item.outcome for item in found if item.outcome.subject == gpu("a", 0))
    assert new.status == expected
    assert "it has no history of its own" in (new.expected or "")
    assert (new.minimum_detectable or 0) > (old.minimum_detectable or 1)


def test_a_gpu_takes_its_past_along_to_another_host() -> None:
    facts = fleet(*HEALTHY)
    moved = [replace(m, subject=m.subject.replace("host/d", "host/e")) for m in facts.measures]
    elsewhere = replace(facts, measures=moved, baseline=recorded(*HEALTHY))

    found = judged(rule("{baseline: measured}"), elsewhere)

    (of_moved,) = (x.outcome for x in found if x.outcome.subject == gpu("d", 1).replace("host/d", "host/e"))
    assert "its own history" in (of_moved.expected or "")


def test_of_figures_where_less_is_better_the_limit_is_above() -> None:
    facts = fleet(*HEALTHY)
    lower = [replace(m, better="lower") for m in facts.measures]
    kept = baseline(replace(facts, measures=lower), *runs_of(replace(facts, measures=lower), 1.001))
    slow = [replace(m, value=(m.value or 0) * (1.1 if m.subject == gpu("d", 1) else 0.9)) for m in lower]

    found = statuses(judged(rule("{baseline: measured}"), replace(facts, measures=slow, baseline=kept)))

    assert found.pop(gpu("d", 1)) == "FAIL"
    assert set(found.values()) == {"PASS"}


def test_a_fleet_that_is_slow_as_a_whole_is_found_by_its_baseline_and_not_by_peers() -> None:
    slow = [0.9 * value for value in HEALTHY]

    assert set(held(*slow).values()) == {"FAIL"}
    peers = judged(rule("{peers: true}"), fleet(*slow))
    assert {item.outcome.status for item in peers} == {"PASS"}
    assert {item.basis for item in peers} == {"peers"}


@pytest.mark.parametrize(("factor", "expected"), [(0.96, "PASS"), (0.90, "FAIL")])
def test_a_share_of_the_baseline_may_be_stated(factor: float, expected: str) -> None:
    found = held(*(factor * value for value in HEALTHY), expect="{baseline: 0.95}")

    assert set(found.values()) == {expected}


def test_a_baseline_of_another_stack_is_refused_by_the_keys_that_differ() -> None:
    facts = fleet(*HEALTHY)
    kept = baseline(facts)
    newer = {name: host_facts(name, driver="580.10", nccl="2.28.3") for name in facts.hosts}

    found = judged(rule("{baseline: measured}"), replace(facts, hosts=newer, baseline=kept))

    assert {item.outcome.status for item in found} == {"ERROR"}
    reason = found[0].outcome.reason or ""
    assert "driver: nvidia 580.10 against nvidia 570.86" in reason
    assert "nccl: 2.28.3 against 2.27.7" in reason
    assert "torch" not in reason


def test_a_baseline_without_this_work_judges_nothing() -> None:
    kept = baseline(fleet(*HEALTHY))
    other = [replace(m, labels={**GEMM, "at_once": False}) for m in fleet(*HEALTHY).measures]

    found = judged(rule("{baseline: measured}"), replace(fleet(*HEALTHY), measures=other, baseline=kept))

    assert {item.outcome.status for item in found} == {"ERROR"}


def test_one_run_of_two_gpus_tells_neither_how_they_repeat_nor_how_they_differ() -> None:
    kept = baseline(fleet(7e14, 7e14))

    found = judged(rule("{baseline: measured}"), replace(fleet(7e14, 7e14), baseline=kept))

    assert {item.outcome.status for item in found} == {"ERROR"}
    assert "has only one run of it" in (found[0].outcome.reason or "")


# Peers and equals


def test_one_that_stands_apart_is_named_and_the_healthy_are_not() -> None:
    found = statuses(judged(rule("{peers: true}"), fleet(*HEALTHY[:7], 5e14)))

    assert found.pop(gpu("d", 1)) == "FAIL"
    assert set(found.values()) == {"PASS"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((6.85e14,), "PASS"),
        ((6.6e14,), "PASS"),
        ((6.0e14,), "FAIL"),
        ((6.6e14, 6.6e14, 6.6e14), "FAIL"),
        ((6.6e14, 7e14, 7e14), "PASS"),
    ],
)
def test_figures_that_agree_accuse_together(values: tuple[float, ...], expected: str) -> None:
    """Seven others are 0.3 % apart: too few to say that none of them has a long tail, unless tests agree."""
    measures = [
        replace(measure, labels={**GEMM, "size": size})
        for size, value in enumerate(values)
        for measure in fleet(*(HEALTHY[(place + 3 * size) % 7] for place in range(7)), value).measures
    ]
    rules = read_rules(
        "rules:\n" + "".join(named_rule(f"peers {size}", size) for size in range(len(values))),
        source="r.yaml",
    )

    found = judge_rules(rules, replace(fleet(*HEALTHY), measures=measures))

    (of_last,) = (x.outcome for x in found if x.name == "peers 0" and x.outcome.subject == gpu("d", 1))
    assert of_last.status == expected
    assert {item.outcome.status for item in found if item.outcome.subject != gpu("d", 1)} == {"PASS"}
    if len(values) > 1 and expected == "FAIL":
        assert "on average over 3 tests" in (of_last.measured or "")


def test_a_host_that_is_slow_with_all_of_its_gpus_is_named() -> None:
    """Six hosts of two GPUs 0.3 % apart, one of them 12 % slow."""
    names = "abcdef"
    measures = [
        measured(gpu(name, index), HEALTHY[(2 * place + index) % 7] * (0.88 if name == "c" else 1.0))
        for place, name in enumerate(names)
        for index in range(2)
    ]

    found = judged(rule("{peers: true}"), FleetFacts(measures=measures, hosts=hosts(*names)))

    failed = {x.outcome.subject: x.outcome.measured for x in found if x.outcome.status == "FAIL"}
    assert set(failed) == {gpu("c", 0), gpu("c", 1)}


def test_what_peers_can_see_is_said_beside_a_pass() -> None:
    found = judged(rule("{peers: true}"), fleet(*HEALTHY))

    for outcome in (item.outcome for item in found):
        assert outcome.status == "PASS"
        assert outcome.minimum_detectable is not None
        assert f"a loss of {share(outcome.minimum_detectable)} would be detected" in (outcome.expected or "")


def named_rule(name: str, size: int) -> str:
    match = f"{{name: throughput, labels: {{size: {size}}}}}"
    return f"  - name: {name}\n    each: gpu\n    measure: {match}\n    expect: {{peers: true}}\n"


def test_a_faster_one_is_a_warning() -> None:
    assert statuses(judged(rule("{peers: true}"), fleet(*HEALTHY[:7], 8.5e14)))[gpu("d", 1)] == "WARN"


def test_of_two_that_differ_neither_is_accused() -> None:
    found = judged(rule("{peers: true}"), fleet(7e14, 5e14, spread=0.01))

    assert set(statuses(found).values()) == {"ERROR"}
    # they are two GPUs of one host, and no hosts
    assert "; one of two can be slower, but which of them is at fault" in (found[0].outcome.reason or "")


@pytest.mark.parametrize(
    "values",
    [
        (7e14, 7.01e14, 6.99e14, 3.5e14, 3.51e14, 3.49e14),  # half of them at half speed
        (7e14, 7e14, 4.2e14, 2.8e14),  # who is off, while the others disagree
        (7e14, 7e14, 3.5e14, 1.75e14),
    ],
)
def test_where_peers_disagree_nobody_passes(values: Sequence[float]) -> None:
    found = judged(rule("{peers: true}"), fleet(*values, spread=0.001))

    assert {item.outcome.status for item in found} == {"ERROR"}
    assert all("too" in (item.outcome.reason or "") for item in found)


@pytest.mark.parametrize(
    ("last", "status"), [(6.95e14, "PASS"), (6.7e14, "PASS"), (5.2e14, "FAIL"), (7.3e14, "PASS")]
)
def test_one_of_eight_peers_is_accused_where_no_tail_explains_it(last: float, status: str) -> None:
    facts = fleet(*HEALTHY[:7], last)
    found = {item.outcome.subject: item.outcome for item in judged(rule("{peers: true}"), facts)}

    assert found.pop(gpu("d", 1)).status == status
    assert {each.status for each in found.values()} == {"PASS"}


@pytest.mark.parametrize(
    "num", [4, pytest.param(6, marks=pytest.mark.long), 8, pytest.param(16, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("tails", ["normal", "t4"])
def test_healthy_peers_are_seldom_accused_and_seldom_left_undecided(num: int, tails: str) -> None:
    """At the rates that a rule has by itself: 0.5 % and 4.5 %; the bound is that of 600 draws."""
    rng = np.random.default_rng(num)
    count: Counter[str] = Counter()
    for _ in range(600):
        drawn = rng.standard_normal(num) if tails == "normal" else rng.standard_t(4, num) / 2**0.5
        facts = fleet(*(7e14 * np.exp(0.005 * drawn)).tolist(), spread=0.001)
        count.update({item.outcome.status for item in judged(rule("{peers: true}"), facts)})
    assert count["FAIL"] <= binom.ppf(0.999, 600, 0.005)
    assert count["ERROR"] <= binom.ppf(0.999, 600, 0.045)


@pytest.mark.parametrize(
    ("fastest", "others"),
    [(7e14 * 1.1, "PASS"), (7e14 * 1.3, "ERROR"), (7e14 * 1.5, "ERROR")],
)
@pytest.mark.parametrize("num", [4, 8])
def test_a_peer_that_is_much_faster_leaves_the_others_undecided(
    num: int, fastest: float, others: str
) -> None:
    """Of GPUs of one type the slow may be the many: throttled ones, or a host that was busy."""
    values = [7e14 * (1 + 0.001 * place) for place in range(num - 1)]
    found = judged(rule("{peers: true}"), fleet(*values, fastest, spread=0.001))
    *rest, fast = [item.outcome for item in found]
    assert fast.status in ("WARN", "PASS")
    assert {outcome.status for outcome in rest} == {others}


def test_who_has_no_peer_has_nothing_to_be_held_against() -> None:
    facts = FleetFacts(measures=[measured(gpu("a", 0), 7e14)], hosts=hosts("a", gpus=1))

    assert statuses(judged(rule("{peers: true}"), facts)) == {gpu("a", 0): "NOT-APPLICABLE"}


def test_peers_are_of_one_type_of_gpu() -> None:
    """Two types, each alike: nobody stands apart, though the second is half as fast."""
    old = hosts("b", name="NVIDIA A100-SXM4-80GB", gpus=5)
    values = [(host, i, v) for host, v in (("a", 7e14), ("b", 2.6e14)) for i in range(5)]
    measures = [measured(gpu(host, i), v * (1 + i / 1000)) for host, i, v in values]

    found = judged(rule("{peers: true}"), FleetFacts(measures=measures, hosts={**hosts("a", gpus=5), **old}))

    assert {item.outcome.status for item in found} == {"PASS"}


def digests(*said: str | None) -> list[Measure]:
    return [
        measured(
            gpu("a", i),
            0.0 if d else None,
            name="fingerprint",
            unit="1",
            labels={"digest": d},
            missing="lost",
        )
        for i, d in enumerate(said)
    ]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (("x", "x", "x"), ["PASS", "PASS", "PASS"]),
        (("x", "y", "x"), ["PASS", "FAIL", "PASS"]),
        (("x", "y"), ["ERROR", "ERROR"]),
        (("x", "y", "z"), ["ERROR", "ERROR", "ERROR"]),
        (("x", "x", "y", "y"), ["ERROR", "ERROR", "ERROR", "ERROR"]),
        (("x",), ["ERROR"]),
        (("x", None), ["ERROR", "ERROR"]),
        (("x", "x", None), ["PASS", "PASS", "ERROR"]),
    ],
)
def test_the_one_that_says_something_else_is_named_where_most_agree(
    said: tuple[str | None, ...], expected: list[str]
) -> None:
    facts = FleetFacts(measures=digests(*said), hosts=hosts("a", gpus=len(said)))

    found = judged(rule("{equal: true}", measure="{name: fingerprint}"), facts)

    assert [item.outcome.status for item in found] == expected


# Hosts, and several measures of one subject


def test_several_measures_of_one_subject_are_told_apart() -> None:
    facts = fleet(7.5e14, 7.5e14)
    alone = [replace(m, labels={**GEMM, "at_once": False}) for m in facts.measures]

    found = judged(rule(FLOOR), replace(facts, measures=[*facts.measures, *alone]))

    assert {item.name for item in found} == {"r [at_once=True]", "r [at_once=False]"}
