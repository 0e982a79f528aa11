"""GPUs counted from both sides: what was expected or granted, listed, visible and used, host by host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collectives_by_hand import counted_again
from concluding import text_of
from gpuproof.base.errors import ExitCode
from gpuproof.campaign.conclude import Concluded, conclude
from gpuproof.processes.granted import granted_gpus
from gpuproof.records.case import Case
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment, Setup
from gpuproof.selftest.fleet import Fleet
from gpuproof.selftest.judging import judge_fleet
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate.counted import facts_there, subjects_there
from gpuproof.suites.validate.gate import gate_code
from gpuproof.suites.validate.options import read_options
from gpuproof.suites.validate.plan import planned_order
from gpuproof.verdict.facts import ExpectedGpus, FleetFacts
from gpuproof.verdict.gpus import doubled_uuids, gpus_by_host
from planning import HERE
from validation_by_hand import done, host_facts, recipe, walk, written

Facts = Mapping[str, Any]
GRANT_OF_TWO: dict[str, Any] = {"granted_gpus": {"number": 2, "source": "SLURM_JOB_GPUS=0,1"}}


def telling(facts: Facts | None) -> Callable[[Case], CaseRecords]:
    """Two devices that work, on a host that tells this of itself; None: nothing."""

    def end(case: Case) -> CaseRecords:
        launch = done(case)
        records = [
            replace(x, facts=dict(facts or {})) if isinstance(x, Environment) else x
            for x in launch.records
            if facts is not None or not isinstance(x, Environment)
        ]
        return replace(launch, records=tuple(records))

    return end


def concluded(folder: Path, facts: Facts | None, **validate: Any) -> Concluded:
    config = recipe(validate=validate)
    return conclude(written(folder, walk(config, end=telling(facts)), config))


def listed(num: int, *, visible: int = 2, **other: Any) -> dict[str, Any]:
    """What a host tells of which the driver lists so many GPUs, and torch sees the first of them."""
    facts = host_facts(num, **other)
    for device in facts["accelerators"]["devices"][visible:]:
        device["framework_index"] = None
    return {**facts, "devices": facts["devices"][:visible]}


SILENT = {"vendor": "nvidia", "pci_bus_id": "0000:81:00.0", "reason": "no answer in 10 s"}


@pytest.mark.parametrize(
    ("facts", "options", "word", "told"),
    [
        (listed(2), {}, "READY", ""),
        (listed(2), {"expected_gpus": 2}, "READY", ""),
        (listed(8), {}, "INCONCLUSIVE", "2 of 8 devices were used"),
        (listed(8), {"expected_gpus": 2}, "READY", ""),
        (listed(8, **GRANT_OF_TWO), {}, "READY", ""),
        (listed(7), {"sku": "HGX H100"}, "NOT-READY", "7 GPUs there: 1 missing, expected 8 GPUs"),
        (listed(8), {"sku": "HGX H100", "expected_gpus": 2}, "READY", ""),
        (listed(8), {"expected_gpus": 8}, "INCONCLUSIVE", "2 of 8 devices were used"),
        (listed(2), {"expected_gpus": 8}, "NOT-READY", "2 GPUs there: 6 missing, expected 8 GPUs"),
        (
            listed(2, granted_gpus={"number": 4, "source": "SLURM_GPUS_ON_NODE=4"}),
            {},
            "NOT-READY",
            "2 GPUs visible: 2 missing, expected 4 GPUs",
        ),
        (listed(8, **GRANT_OF_TWO), {"expected_gpus": 9}, "NOT-READY", "8 GPUs there: 1 missing"),
        (None, {}, "INCONCLUSIVE", "it reported nothing about itself"),
        (listed(1, visible=1), {}, "INCONCLUSIVE", "no driver lists it"),
        (
            {**listed(2), "accelerators": {**listed(2)["accelerators"], "silent": [SILENT]}},
            {},
            "INCONCLUSIVE",
            "the driver of nvidia 0000:81:00.0 does not respond: no answer in 10 s",
        ),
    ],
)
def test_what_should_be_there_is_held_against_what_is(
    facts: Facts | None, options: dict[str, Any], word: str, told: str, tmp_path: Path
) -> None:
    found = concluded(tmp_path, facts, **options)
    assert (found.result.verdict, told in text_of(found)) == (word, True), text_of(found)
    assert (found.result.exit_code == ExitCode.FAILED) is (word == "NOT-READY")
    assert (gate_code(found.result) is ExitCode.FAILED) is (word == "NOT-READY")


@pytest.mark.parametrize(
    ("variables", "visible", "missing"),
    [
        ({}, 2, 0),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 1, 0),  # the user left one out
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 1, 1),  # both were named, and one is not there
        ({}, 1, 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0, 2),  # a job that sees none of what it was given
    ],
)
def test_what_was_granted_has_to_be_visible_unless_the_user_left_it_out(
    variables: dict[str, str], visible: int, missing: int
) -> None:
    expected = {"a": ExpectedGpus(number=2, source="SLURM_JOB_GPUS=0,1", is_granted=True)}
    hosts = {"a": listed(8, visible=visible, environment=variables)}
    assert (
        gpus_by_host(FleetFacts(measures=(), hosts=hosts, expected_gpus=expected))["a"].num_missing == missing
    )


def test_every_subject_that_should_be_there_is_named() -> None:
    config = recipe(validate={"expected_gpus": 4})
    places = [HostPlace(name="a"), HostPlace(name="b")]
    order = planned_order(config, places, read_options(config))
    (launch,) = [x for x in walk(config, places) if x.case.case_id == "collective-within@a"]
    assert subjects_there(facts_there(order, [launch])) == (
        *("host/a", "host/a/gpu/a-0", "host/a/gpu/a-1", "host/a/gpu/missing-1", "host/a/gpu/missing-2"),
        *("host/b", *(f"host/b/gpu/missing-{number}" for number in (1, 2, 3, 4))),
    )


def test_a_gpu_has_the_name_that_its_measures_have() -> None:
    """The driver writes another UUID than torch, and lists an instance whose GPU is not used as a whole."""
    instance = {"uuid": "MIG-0b", "framework_index": None, "static": {"mig_parent_uuid": "GPU-0a"}}
    whole = [{"uuid": "GPU-0a"}, {"uuid": "GPU-0c", "framework_index": None}]
    facts = {"devices": [{"index": 0, "uuid": "0b"}], "accelerators": {"devices": [*whole, instance]}}
    gpus = gpus_by_host(FleetFacts(measures=(), hosts={"a": facts}))["a"]
    assert (gpus.there, gpus.unlisted) == (("host/a/gpu/0b", "host/a/gpu/GPU-0c"), ())


def test_devices_without_an_identity_are_counted_and_not_guessed() -> None:
    nameless = [{"physical_index": place, "uuid": None} for place in range(3)]
    facts = {"devices": [{"index": 0, "uuid": "x"}], "accelerators": {"devices": nameless}}
    gpus = gpus_by_host(FleetFacts(measures=(), hosts={"a": facts}))["a"]
    assert (len(gpus.there), gpus.unlisted) == (3, ())


def test_one_machine_under_two_names_is_told() -> None:
    def host(*uuids: str) -> dict[str, Any]:
        return {"devices": [{"index": i, "uuid": uuid} for i, uuid in enumerate(uuids)]}

    hosts = {"a": host("GPU-0a"), "b": host("0a", "0b"), "c": host("SIM-0000"), "d": host("SIM-0000")}
    doubled = doubled_uuids(gpus_by_host(FleetFacts(measures=(), hosts=hosts)).values())
    assert doubled == {"a": {"0a": ["b"]}, "b": {"0a": ["a"]}}


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        ({}, None),
        ({"SLURM_JOB_GPUS": ""}, None),
        ({"SLURM_GPUS_ON_NODE": "0"}, None),
        ({"SLURM_GPUS_ON_NODE": "a100:4"}, None),
        ({"SLURM_JOB_GPUS": "0,2-4"}, 4),
        ({"SLURM_STEP_GPUS": "3", "SLURM_JOB_GPUS": "0-7"}, 1),
        ({"GPUPROOF_GRANTED_GPUS": "2", "SLURM_JOB_GPUS": "0"}, 2),
    ],
)
def test_what_a_scheduler_granted(environment: dict[str, str], number: int | None) -> None:
    grant = granted_gpus(environment)
    assert (grant and grant["number"]) == number


def test_a_launch_that_left_no_figure_was_not_measured(tmp_path: Path) -> None:
    """The ranks ended well, and what they measured is not in their journals."""

    def end(case: Case) -> CaseRecords:
        launch = done(case)
        kept = tuple(x for x in launch.records if not type(x).__name__.endswith("Trial"))
        return counted_again(replace(launch, records=kept))

    config = recipe()
    found = conclude(written(tmp_path, walk(config, HERE, end), config))
    assert found.result.verdict == "INCONCLUSIVE"
    assert "without a record of what it measured" in text_of(found)
    assert any(isinstance(x, Setup) for x in walk(config)[0].records)


def test_a_fleet_of_one_machine_under_three_names_is_not_ready(tmp_path: Path) -> None:
    twin = judge_fleet(Fleet(), tmp_path / "three")
    one = judge_fleet(Fleet(uuid="GPU-{index}a"), tmp_path / "one")
    assert (twin.word, one.word) == ("READY", "INCONCLUSIVE")
    assert any("node2, node3 have the same GPU 0a" in reason for reason in one.against)
