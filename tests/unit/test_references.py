"""References for known boards: what they judge and refuse to, how sharp they are, and what makes one."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomllib

from gpuproof.base.errors import UsageError
from gpuproof.base.files import packaged_text
from gpuproof.records.codec import from_json
from gpuproof.records.outcome import Outcome
from gpuproof.records.result import Measure, MeasureInterval
from gpuproof.suites.validate.rates import rate_rows
from gpuproof.verdict.aspects import RequiredAspect, cells_of
from gpuproof.verdict.baseline import RunValues, stack_of
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.made_references import as_toml, make_references
from gpuproof.verdict.references import (
    BoardReference,
    BoardReferences,
    judge_by_references,
    load_references,
    reason_provisional,
    references_with,
    sharpness,
)

CARDS = Path(__file__).parent.parent / "replay" / "cards"
HOSTS: dict[str, Any] = json.loads((CARDS / "validate_h100" / "environment.json").read_text(encoding="utf-8"))
KNOWN = load_references()
MEMORY = next(one for one in KNOWN.references if one.quantity == "memory")
LINK = next(one for one in KNOWN.references if one.quantity == "host link")
ANOTHER = "GPU-99999999-0000-4000-8000-000000000009"
NARROW = MeasureInterval(low=0.999, high=1.001, level=0.95, kind="within_launch", method="a test's")


def measured(
    reference: BoardReference = MEMORY,
    *,
    share: float = 1.0,
    card: str = ANOTHER,
    host: str = "vm",
    **fields: Any,
) -> Measure:
    """Return a figure of the very work of a reference, at a share of its value."""
    gpu = f"host/{host}/gpu/{card}"
    value = reference.value * share
    measure = Measure(
        name="link bandwidth" if reference is LINK else "throughput",
        subject=f"link/host/{host}>{gpu}" if reference is LINK else gpu,
        labels=dict(reference.labels),
        value=value,
        unit=reference.unit,
        text=f"{value:.4g} {reference.unit}",
        statistic="total",
        better="higher",
        validity="VALID",
        interval=replace(NARROW, low=0.999 * value, high=1.001 * value),
    )
    return replace(measure, **fields)


def judged(
    *measures: Measure, hosts: Mapping[str, Any] | None = None, known: BoardReferences = KNOWN
) -> list[Outcome]:
    facts = FleetFacts(measures=measures, hosts=hosts or HOSTS)
    return [item.outcome for item in judge_by_references(facts, run="another run", references=known)]


def changed(**facts: Any) -> dict[str, Any]:
    """Return the host with other facts: of its GPU's `static`, or of itself."""
    hosts = copy.deepcopy(HOSTS)
    listed = hosts["vm"]["accelerators"]["devices"][0]
    device = listed["state" if facts.keys() <= {"pcie_width"} else "static"]
    for name, value in facts.items():
        if name == "driver":
            hosts["vm"]["accelerators"]["drivers"]["nvidia"]["version"] = value
        else:
            (device if name in device else hosts["vm"])[name] = value
    return hosts


def test_another_card_of_the_board_passes_and_says_how_small_a_loss_would_show() -> None:
    (outcome,) = judged(measured(share=0.97))
    assert outcome.status == "PASS"
    assert outcome.minimum_detectable == pytest.approx(0.179, abs=0.001)
    assert outcome.source is not None
    assert "healthy cards differ by 3.0 %; a loss of 18 % would be detected" in outcome.source


@pytest.mark.parametrize(("share", "status"), [(0.9, "PASS"), (0.88, "FAIL"), (0.5, "FAIL"), (1.3, "PASS")])
def test_a_slow_card_fails(share: float, status: str) -> None:
    (outcome,) = judged(measured(share=share))
    assert outcome.status == status


def test_a_link_of_half_the_rate_fails_though_no_small_loss_would_show() -> None:
    full, half = judged(measured(LINK)), judged(measured(LINK, share=0.5))
    assert (full[0].status, half[0].status) == ("PASS", "FAIL")
    assert full[0].minimum_detectable == pytest.approx(0.298, abs=0.001)


def test_the_page_shows_each_rate_beside_the_reference_of_its_own_work() -> None:
    products = {"stage": "gemm", "at_once": False, "dtype": "bf16"}
    of_product = measured(labels=products, value=6e14, unit="FLOP/s", text="600 TFLOP/s")
    measures = [of_product, measured(share=0.98)]
    facts = FleetFacts(measures=measures, hosts=HOSTS)
    (memory,) = [x for x in judge_by_references(facts, run="another run") if x.outcome.expected]
    outcome = replace(memory.outcome, measured=of_product.text, expected="≥ 580 TFLOP/s")
    items = [replace(memory, outcome=outcome, labels=products), memory]
    rows = [
        RequiredAspect(aspect="compute", title="a GPU", measure="throughput", labels=products),
        RequiredAspect(aspect="memory", title="its memory", measure="throughput", labels=MEMORY.labels),
    ]
    cells = cells_of(rows, {"gpu": [of_product.subject]}, judged=items, measures=measures, detects=0.5).cells
    shown = {row.what: row.expected for row in rate_rows(cells, measures, items, facts)}
    assert shown["GEMM bf16"].startswith("≥ 580 TFLOP/s (")
    assert shown["memory"].startswith(f"{memory.outcome.expected} (")


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [
        (changed(power_limit_w=500.0), "power_limit_w is 500 here but 700 there"),
        (changed(mig_mode="enabled"), "mig is enabled here but disabled there"),
        (changed(ecc_mode="disabled"), "ecc is disabled here but enabled there"),
        (changed(clock_sm_application_mhz=1200), "clocks is 1200 here but 1980 there"),
        (changed(torch="1.13.1"), "torch is 1.13.1 here, older than 2.11.0+cu130"),
        (changed(driver="550.54.15"), "driver is nvidia 550.54.15 here, older than nvidia 580.159.04"),
        (changed(torch_cuda=None), "cuda is unknown here, older than 13.0"),
    ],
)
def test_other_conditions_are_named_and_are_no_slow_card(hosts: Mapping[str, Any], reason: str) -> None:
    (outcome,) = judged(measured(share=0.6), hosts=hosts)
    assert outcome.status == "SKIP"
    assert outcome.reason is not None
    assert reason in outcome.reason
    assert outcome.next_step


@pytest.mark.parametrize(
    ("hosts", "here"),
    [
        (changed(pcie_width=8), "gen 5 x8"),
        (changed(pcie_gen_max=4), "gen 4 x16"),
        (changed(pcie_width=None), "unknown"),
    ],
)
def test_a_link_of_another_width_or_generation_is_not_judged_and_the_memory_behind_it_is(
    hosts: Mapping[str, Any], here: str
) -> None:
    link, memory = judged(measured(LINK), measured(), hosts=hosts)
    assert (link.status, memory.status) == ("SKIP", "PASS")
    assert f"pcie is {here} here but gen 5 x16 there" in str(link.reason)
    made, left_out = make_references([figures(measured(LINK), hosts=hosts)], KNOWN)
    assert [one.stack["pcie"] for one in made] == ([] if here == "unknown" else [here])
    assert bool(left_out) == (here == "unknown")


def test_references_of_simulated_cards_judge_simulated_cards_alone() -> None:
    simulated = changed(torch_cuda=None, torch="2.13.0")
    simulated["vm"]["accelerators"]["drivers"] = {"fake": {"version": "fake"}}
    made, _ = make_references([figures(measured(share=0.001, card="SIM-1"), hosts=simulated)], KNOWN)
    known = replace(KNOWN, references=tuple(made))
    slow, real = measured(share=0.0008), judged(measured(), hosts=changed(torch="2.13.0"), known=known)
    assert [one.status for one in judged(slow, hosts=simulated, known=known)] == ["FAIL"]
    assert [one.status for one in judged(measured(share=0.001), hosts=simulated, known=known)] == ["PASS"]
    assert real[0].status == "SKIP"
    assert "driver is nvidia 580.159.04 here but fake fake there" in str(real[0].reason)


def test_a_file_of_the_users_adds_references_and_no_spread() -> None:
    made, _ = make_references([figures(measured(card="GPU-8"))], KNOWN)
    known = references_with("\n".join(as_toml(made, KNOWN)))
    assert known.references == (*made, *KNOWN.references)
    assert known.quantities == KNOWN.quantities
    assert references_with(None) == KNOWN


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("no toml", "cannot be read"),
        ("other_version = 0.5", "other_version"),
        ("[[references]]\nboard = 1", "cannot be read"),
        (
            "\n".join(as_toml([replace(MEMORY, quantity="memory")], KNOWN)).replace(
                '"memory"\nlabels', '"heat"\nlabels'
            ),
            "heat",
        ),
    ],
)
def test_a_file_that_is_none_of_references_is_refused_by_its_name(text: str, cause: str) -> None:
    with pytest.raises(UsageError, match=cause) as refused:
        references_with(text, place="mine.toml")
    assert "mine.toml" in str(refused.value)


@pytest.mark.parametrize("hosts", [changed(torch="2.12.1+cu130"), changed(driver="595.10.01")])
def test_newer_software_is_named_and_widens_the_limit(hosts: Mapping[str, Any]) -> None:
    (outcome,) = judged(measured(), hosts=hosts)
    assert outcome.status == "PASS"
    assert outcome.source is not None
    assert ", not " in outcome.source
    assert outcome.minimum_detectable == pytest.approx(0.184, abs=0.001)  # sqrt(0.03² · 2 + 0.01²) · 4.2207


@pytest.mark.parametrize(
    ("measure", "reason"),
    [
        (measured(card=MEMORY.cards[0]), "made from this very run or card"),
        (measured(validity="SUSPECT"), "SUSPECT"),
        (measured(validity=None), "unknown validity"),
    ],
)
def test_a_reference_does_not_judge(measure: Measure, reason: str) -> None:
    (outcome,) = judged(measure)
    assert outcome.status == "SKIP"
    assert outcome.reason is not None
    assert reason in outcome.reason


def test_a_run_is_never_judged_by_itself_whatever_its_cards_are_called() -> None:
    facts = FleetFacts(measures=[measured()], hosts=HOSTS)
    (item,) = judge_by_references(facts, run=MEMORY.runs[0])
    assert item.outcome.status == "SKIP"


@pytest.mark.parametrize(
    "measure",
    [
        measured(labels={**MEMORY.labels, "buffer_bytes": 2**30}),
        measured(labels={**MEMORY.labels, "num_devices": 8}),
        measured(labels={**MEMORY.labels, "at_once": True}),
        measured(value=None, interval=None, missing="it was not measured"),
        measured(name="model FLOP/s"),
    ],
)
def test_other_work_has_no_reference(measure: Measure) -> None:
    assert judged(measure) == []


def test_another_board_has_no_reference() -> None:
    hosts = copy.deepcopy(HOSTS)
    hosts["vm"]["devices"][0]["name"] = "NVIDIA H200"
    assert judged(measured(), hosts=hosts) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"value": 0.6 * MEMORY.value}, "of the data sheet is outside the range of healthy cards"),
        ({"value": 1.2 * MEMORY.value}, "of the data sheet is outside the range of healthy cards"),
        ({"value": 0.92 * MEMORY.value}, "no independent value is within"),
        ({"independent": ()}, "no independent value is within"),
        ({"board": "NVIDIA H100"}, "the data sheet value of NVIDIA H100 is unknown"),
    ],
)
def test_a_card_that_may_have_been_slow_closes_nothing(change: Mapping[str, Any], reason: str) -> None:
    provisional = replace(MEMORY, **change)
    quantity = next(one for one in KNOWN.quantities if one.name == "memory")
    assert reason in (reason_provisional(provisional, quantity) or "")
    if "board" not in change:
        (outcome,) = judged(measured(), known=replace(KNOWN, references=(provisional,)))
        assert outcome.status == "SKIP"


def test_the_shipped_references_agree_with_data_sheets_and_others_and_have_sources() -> None:
    quantities = {quantity.name: quantity for quantity in KNOWN.quantities}
    assert [reason_provisional(one, quantities[one.quantity]) for one in KNOWN.references] == [None, None]
    assert quantities["memory"].spread >= 0.03
    assert quantities["host link"].spread >= 0.05
    assert all(quantity.source for quantity in KNOWN.quantities)
    assert not [one for one in KNOWN.references if one.quantity == "products"]  # 2 s at the power cap


def figures(*measures: Measure, hosts: Mapping[str, Any] | None = None, run_id: str = "a") -> RunValues:
    return RunValues(run_id=run_id, measures=measures, stack=stack_of(hosts or HOSTS), day="2026-11-27")


def test_references_are_made_of_valid_figures_with_intervals_over_all_cards() -> None:
    first = figures(measured(), measured(LINK, interval=None), measured(validity="SUSPECT", case="x"))
    second = figures(measured(share=0.98, card="GPU-8"), measured(share=1.02, card="GPU-8"), run_id="b")
    made, left_out = make_references([first, second], KNOWN)
    assert [(one.quantity, one.cards, one.runs) for one in made] == [
        ("memory", ("GPU-8", ANOTHER), ("a", "b"))
    ]
    assert made[0].value == pytest.approx(MEMORY.value)  # of the two cards' means
    assert ["no interval" in line for line in left_out] == [True, False]
    assert "SUSPECT" in left_out[1]


def test_what_is_exported_is_what_is_read() -> None:
    made, _ = make_references([figures(measured(), measured(LINK))], KNOWN)
    text = packaged_text("hardware/references.toml").partition("\n[[references]]")[0]
    read = from_json(BoardReferences, tomllib.loads("\n".join([text, *as_toml(made, KNOWN)])), place="test")
    assert read.references == tuple(made)
    slow, _ = make_references([figures(measured(share=0.8))], KNOWN)
    assert any(line.startswith("# provisional: ") for line in as_toml(slow, KNOWN))


@pytest.mark.parametrize(
    ("other", "cause"),
    [
        (changed(power_limit_w=500.0), "its power_limit_w is 500, but 700 in a"),
        (changed(torch_cuda=None), "its cuda is unknown"),
    ],
)
def test_runs_of_other_or_unknown_conditions_make_no_reference(other: Mapping[str, Any], cause: str) -> None:
    with pytest.raises(UsageError, match=cause):
        make_references([figures(measured()), figures(measured(), hosts=other, run_id="b")], KNOWN)


@pytest.mark.parametrize("num_cards", [1, 3])
def test_of_healthy_cards_few_fail_and_of_losses_that_would_show_most_do(num_cards: int) -> None:
    """Cards, and those of the reference, drawn alike: seeded, 4,000 pairs."""
    draw, spread, rate, num = random.Random(42), 0.03, 0.005, 4000
    sharp = sharpness(spread=spread, num_cards=num_cards, extra=0.0, error_rate=rate)

    def failed(loss: float) -> float:
        failures = 0
        for _ in range(num):
            reference = sum(draw.gauss(1, spread) for _ in range(num_cards)) / num_cards
            failures += draw.gauss(1, spread) * (1 - loss) < reference * (1 - sharp.limit)
        return failures / num

    assert failed(0.0) <= 0.01
    assert failed(sharp.detectable) >= 0.94
    assert sharp.detectable < 0.2
