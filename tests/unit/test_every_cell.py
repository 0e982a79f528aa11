"""Every required cell of every shipped recipe can be closed on the machine at hand, or fails on it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.readings.evidence import Evidence
from gpuproof.records.codec import to_json
from gpuproof.records.outcome import kind_of
from gpuproof.records.result import Measure, Result
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate import SUITE
from gpuproof.verdict.aspects import RATES
from gpuproof.verdict.baseline import RunValues, record_baseline, stack_of
from gpuproof.verdict.facts import facts_by_host
from machines_by_hand import HEALTHY, Faults, machine

SLOW = Faults(slower=2.0, slower_together=2.0)
WRONG = Faults(are_values_wrong=True)
UNFIT = Faults(
    gpu={"remapped_rows_failed": 1.0},
    host={"infiniband": [{"device": "mlx5_0", "port": "1", "state": "DOWN", "rate": "400 Gb/sec"}]},
)
RECIPES = ("validate", "validate-quick", "validate-prolog", "validate-playbook", "validate-burn-in")
FEW = ((1, 1), (1, 2), (3, 1))
"""Hosts, and devices of each."""
MANY = ((1, 8), (3, 2), (3, 8))
long = pytest.mark.long
SHAPES = [
    *(pytest.param(recipe, *shape) for recipe in RECIPES for shape in FEW),
    *(pytest.param(recipe, *shape, marks=long) for recipe in RECIPES for shape in MANY),
]


def recipe_of(name: str, num_devices: int, **options: Any) -> RunConfig:
    """A shipped recipe, each launch of it once."""
    config = load_config(name, ["--run.repeats=1", f"--distributed.nproc={num_devices}"]).config
    block = {**config.suite_options["validate"], **options}
    return config.model_copy(update={"suite_options": {"validate": block}})


def judged(evidence: Evidence, **options: Any) -> Result:
    """The same evidence, judged by further options."""
    block = {**evidence.config.suite_options["validate"], **options}
    config = evidence.config.model_copy(update={"suite_options": {"validate": block}})
    return SUITE.conclude(replace(evidence, config=config)).result


def standings(result: Result, *aspects: str) -> dict[str, str]:
    """Return how each cell stands, of these aspects or of all; those that are not as the rest tell why."""
    cells = result.detail["readiness"]["cells"]
    return {
        f"{cell['title']} {cell['labels']} of {cell['subject']}: {cell['reason']}": cell["standing"]
        for cell in cells
        if not aspects or cell["aspect"] in aspects
    }


def past(evidence: Evidence, measures: Sequence[Measure]) -> Mapping[str, Any]:
    """The baseline of six days that differ by a thousandth."""
    runs = [
        RunValues(
            run_id=f"day-{day}",
            measures=[replace(m, value=m.value and m.value * (1 + day / 1000)) for m in measures],
            stack=stack_of(facts_by_host(evidence.launches)),
            day=f"2026-11-0{day + 1}",
        )
        for day in range(6)
    ]
    baseline: dict[str, Any] = to_json(
        record_baseline("own", runs, recorded="2026-11-07", gpuproof_version="0")
    )
    return baseline


def agreed(result: Result) -> str:
    """The rules that gpuproof writes to be filled in, with nine tenths of the lowest that was measured."""
    rules = YAML(typ="safe").load(result.detail["rules_to_fill"])
    for rule in rules["rules"]:
        labels = rule["measure"]["labels"] or {}
        values = [
            measure.value
            for measure in result.measures
            if measure.name == rule["measure"]["name"]
            and rule["each"] in ("any", kind_of(measure.subject))
            and all({"case": measure.case, **measure.labels}.get(k) == v for k, v in labels.items())
            and measure.unit == rule["expect"]["unit"]
            and measure.value is not None
        ]
        rule["expect"]["at_least"] = 0.9 * min(values)
    return json.dumps(rules)


@pytest.mark.parametrize(("recipe", "num_hosts", "num_devices"), SHAPES)
def test_every_cell_is_closed_by_a_baseline_and_by_a_contract_and_fails_where_something_is_wrong(
    recipe: str, num_hosts: int, num_devices: int, tmp_path: Path
) -> None:
    names = [f"node{number + 1}" for number in range(num_hosts)] if num_hosts > 1 else [""]
    places = [HostPlace(name=name, num_devices=num_devices) for name in names]
    config = recipe_of(recipe, num_devices)
    healthy = machine(tmp_path / "healthy", config, places, HEALTHY)
    bare = judged(healthy, efficiency=None)
    assert set(standings(bare, *RATES).values()) == {"undecided"}
    ways = {"baseline": past(healthy, bare.measures)}, {"file_rules": agreed(bare), "efficiency": None}
    slow = machine(tmp_path / "slow", config, places, SLOW)
    for way in ways:
        closed = standings(judged(healthy, **way))
        assert {cell: how for cell, how in closed.items() if how != "passed"} == {}
        failed = standings(judged(slow, **way), *RATES)
        assert failed
        assert {cell: how for cell, how in failed.items() if how != "failed"} == {}
    for aspect, faults in (("right results", WRONG), ("state", UNFIT)):
        bad = standings(judged(machine(tmp_path / aspect, config, places, faults)), aspect)
        assert bad
        assert {cell: how for cell, how in bad.items() if how != "failed"} == {}
