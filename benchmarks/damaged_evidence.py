"""A READY run's evidence with one thing damaged, and judged again: what is READY all the same, and why?

The run is of a fleet that is made up (three hosts, two GPUs each), written and judged as the selftest does. A
change takes away, doubles or renames a launch, a record, a host, a GPU, a counter of its driver or a rule.
Prints a line a kind of change: how many there are, and how many of them stay READY; then each that does.

    python benchmarks/damaged_evidence.py              about a minute
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpuproof.readings.evidence import Evidence
from gpuproof.records.collected import CaseRecords
from gpuproof.records.run import Environment, Setup
from gpuproof.selftest.fleet import Fleet
from gpuproof.selftest.judging import CHECKS, write_fleet
from gpuproof.suites.validate import SUITE

HARMLESS = {
    "one record of a rank taken: OwnCompute": "what a rank computes by itself explains, and decides nothing",
    "one record of a rank taken: Connections": "the other end of each link counted its packets, too",
    "one record doubled": "the same thing said twice is no other thing",
    "facts of a host taken from one launch": "the host reported them in every other launch as well",
    "one record of a rank taken: Steps": "a rate is its window's; steps tell of drift, by the slowest rank",
    "a GPU that is listed and not visible": "it ran in every launch, and was measured",
    "a rule taken": "no cell of this recipe rests on it",
}
"""Kinds of change that may leave a run READY, and why."""
Change = tuple[str, str, Evidence]
FactsChange = Callable[[dict[str, Any]], dict[str, Any] | None]
DeviceChange = Callable[[dict[str, Any], int], dict[str, Any]]


def healthy(folder: Path) -> Evidence:
    """Write a fleet in which nothing is wrong."""
    return write_fleet(Fleet(seed=1, is_counted=False), folder, rules=[{"check": name} for name in CHECKS])


def word_of(evidence: Evidence) -> str:
    """Return the verdict before its cap."""
    try:
        return str(SUITE.conclude(evidence).result.detail["readiness"]["uncapped"])
    except Exception as error:  # noqa: BLE001  # what cannot be concluded at all is printed as such
        return f"{type(error).__name__}: {error}"


def changes(evidence: Evidence) -> Iterator[Change]:
    """Yield every change: its kind, what it is of, and the evidence with it."""
    for number, launch in enumerate(evidence.launches):
        name = launch.case.case_id
        yield "a launch taken", name, _with(evidence, number, None)
        for place, record in enumerate(launch.records):
            kind = type(record).__name__
            where = f"{name}, record {place} ({kind})"
            without = replace_records(launch, launch.records[:place] + launch.records[place + 1 :])
            if isinstance(record, Environment):
                yield "facts of a host taken from one launch", where, _with(evidence, number, without)
            else:
                yield f"one record of a rank taken: {kind}", where, _with(evidence, number, without)
            if place % 5 == 0:
                twice = replace_records(launch, (*launch.records, record))
                yield "one record doubled", where, _with(evidence, number, twice)
    yield from _of_devices(evidence)
    yield from _of_facts(evidence)
    yield from _of_rules(evidence)


def replace_records(launch: CaseRecords, records: tuple[Any, ...]) -> CaseRecords:
    """Return a launch with other records."""
    return CaseRecords(case=launch.case, records=records, torn=launch.torn)


def _with(evidence: Evidence, number: int, launch: CaseRecords | None) -> Evidence:
    rest = (evidence.launches[:number], evidence.launches[number + 1 :])
    return replace(evidence, launches=(*rest[0], *(() if launch is None else (launch,)), *rest[1]))


def _of_devices(evidence: Evidence) -> Iterator[Change]:
    """Yield a rank that used another GPU than the plan's, as it says itself."""
    for number, launch in enumerate(evidence.launches):
        for place, record in enumerate(launch.records):
            if isinstance(record, Setup):
                other = replace(record, device=replace(record.device, uuid="GPU-elsewhere"))
                records = (*launch.records[:place], other, *launch.records[place + 1 :])
                where = f"{launch.case.case_id}, rank {record.rank}"
                yield "a GPU renamed", where, _with(evidence, number, replace_records(launch, records))


def _of_facts(evidence: Evidence) -> Iterator[Change]:
    """Yield changes of what a host reports in all its launches."""
    for host in dict.fromkeys(told.host for launch in evidence.launches for told in launch.of(Environment)):
        yield "a host that reports nothing", host, _facts(evidence, host, lambda _: None)
        for index in range(2):
            for kind, change in _DRIVER.items():
                yield kind, f"{host}, GPU {index}", _facts(evidence, host, _of_index(change, index))


def _of_index(change: DeviceChange, index: int) -> FactsChange:
    return lambda facts: change(facts, index)


def _facts(evidence: Evidence, host: str, change: FactsChange) -> Evidence:
    launches = []
    for launch in evidence.launches:
        records = []
        for record in launch.records:
            if isinstance(record, Environment) and record.host == host:
                facts = change(deepcopy(record.facts))
                records += [] if facts is None else [replace(record, facts=facts)]
            else:
                records.append(record)
        launches.append(replace_records(launch, tuple(records)))
    return replace(evidence, launches=tuple(launches))


def _listed(facts: dict[str, Any], index: int) -> dict[str, Any]:
    device: dict[str, Any] = facts["accelerators"]["devices"][index]
    return device


def _without_device(facts: dict[str, Any], index: int) -> dict[str, Any]:
    del facts["accelerators"]["devices"][index]
    return facts


def _more_devices(facts: dict[str, Any], index: int) -> dict[str, Any]:
    more = {**_listed(facts, index), "uuid": "GPU-more", "physical_index": 7, "framework_index": None}
    facts["accelerators"]["devices"].append(more)
    return facts


def _invisible(facts: dict[str, Any], index: int) -> dict[str, Any]:
    del facts["devices"][index]
    return facts


def _twin(facts: dict[str, Any], index: int) -> dict[str, Any]:
    other = "GPU-node1-0" if facts["host"] != "node1" else "GPU-node2-0"
    _listed(facts, index)["uuid"] = facts["devices"][index]["uuid"] = other
    return facts


def _silent(facts: dict[str, Any], index: int) -> dict[str, Any]:
    facts["accelerators"]["silent"] = [{"vendor": "seeded", "pci_bus_id": str(index), "reason": "no answer"}]
    return facts


def _without_counter(name: str) -> DeviceChange:
    def change(facts: dict[str, Any], index: int) -> dict[str, Any]:
        del _listed(facts, index)["state"][name]
        return facts

    return change


def _wrong_counter(facts: dict[str, Any], index: int) -> dict[str, Any]:
    _listed(facts, index)["state"]["ecc_uncorrected_count"] = 1.0
    return facts


def _without_limit(facts: dict[str, Any], index: int) -> dict[str, Any]:
    del _listed(facts, index)["static"]["power_limit_w"]
    return facts


_DRIVER: Mapping[str, DeviceChange] = {
    "a GPU that no driver lists": _without_device,
    "a GPU more than was measured": _more_devices,
    "a GPU that is listed and not visible": _invisible,
    "one GPU on two hosts": _twin,
    "a driver that does not answer": _silent,
    "the counter remapped_rows_failed taken": _without_counter("remapped_rows_failed"),
    "the counter remapped_rows_pending taken": _without_counter("remapped_rows_pending"),
    "the counter ecc_uncorrected_count taken": _without_counter("ecc_uncorrected_count"),
    "an uncorrected error": _wrong_counter,
    "the power limit taken": _without_limit,
}


def _of_rules(evidence: Evidence) -> Iterator[Change]:
    options = evidence.config.suite_options["validate"]
    for place, rule in enumerate(options["rules"]):
        rest = [*options["rules"][:place], *options["rules"][place + 1 :]]
        own = {**evidence.config.suite_options, "validate": {**options, "rules": rest}}
        config = evidence.config.model_copy(update={"suite_options": own})
        yield "a rule taken", str(rule.get("name") or rule.get("check")), replace(evidence, config=config)


def main() -> None:
    """Print how many changes of each kind stay READY, and which."""
    with TemporaryDirectory() as folder:
        evidence = healthy(Path(folder))
        print(f"undamaged: {word_of(evidence)}")
        judged = [(kind, where, word_of(changed)) for kind, where, changed in changes(evidence)]
    for kind in dict.fromkeys(kind for kind, _, _ in judged):
        words = [word for name, _, word in judged if name == kind]
        raised = [word for word in words if ": " in word]
        said = f", {len(raised)} cannot be concluded ({raised[0][:60]})" if raised else ""
        print(f"{len(words):5}  {words.count('READY'):5} READY  {kind}{said}")
    ready = [(kind, where) for kind, where, word in judged if word == "READY"]
    print(f"{len(judged)} changes, {len(ready)} READY")
    for kind, where in ready:
        print(f"  {kind}: {where}: {HARMLESS.get(kind, 'NOT KNOWN TO BE HARMLESS')}")


if __name__ == "__main__":
    main()
