"""Damage one thing in a READY run's evidence and evaluate it again: what is still READY, and why?

The run is from a made-up fleet (three hosts, two GPUs each), written and evaluated as in the selftest. A
change removes, duplicates, renames or contradicts a launch, a record, a host, a GPU, a driver counter, a
stage or a rule. Prints one line per kind of change: how many changes there are, and how many of them stay
READY; then each change that does.

    python benchmarks/damaged_evidence.py              about a minute
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
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
    "one record of a rank removed: OwnCompute": "a rank's own compute explains, but decides nothing",
    "one record of a rank removed: Connections": "the host also counted what it sends in other launches",
    "one record duplicated: Connections": (
        "twice as many segments and twice as many losses yield the same loss rate"
    ),
    "one record duplicated: OwnCompute": "a rank's own compute explains, but decides nothing",
    "host facts removed from one launch": "the host reported them in every other launch as well",
    "no GPU listed in an earlier launch": "the driver lists them all later, with counters that only grow",
    "a driver that did not answer in an earlier launch": "it responded later, with counters that only grow",
    "a counter that an earlier launch lacks": "it only grows, and was read later",
    "a GPU that torch did not see": "the driver lists it, it ran in every launch, and it was measured",
    "a rule removed": "nothing in this recipe depends on it",
}
"""Kinds of change that may leave a run READY, and why."""
Change = tuple[str, str, Evidence]
DeviceChange = Callable[..., dict[str, Any]]
"""Returns a changed version of what a host reports about the device `index`."""


def healthy(folder: Path) -> Evidence:
    """Write a fleet without faults."""
    return write_fleet(Fleet(seed=1, is_counted=False), folder, rules=[{"check": name} for name in CHECKS])


def word_of(evidence: Evidence) -> str:
    """Return the uncapped verdict."""
    try:
        return str(SUITE.conclude(evidence).result.detail["readiness"]["uncapped"])
    except Exception as error:  # noqa: BLE001  # what cannot be concluded at all is printed as such
        return f"{type(error).__name__}: {error}"


def changes(evidence: Evidence) -> Iterator[Change]:
    """Yield every change: its kind, its subject, and the changed evidence."""
    for number, launch in enumerate(evidence.launches):
        name = launch.case.case_id
        yield "a launch removed", name, _with(evidence, number, None)
        doubled = (*evidence.launches[:number], launch, *evidence.launches[number:])
        yield "one launch duplicated", name, replace(evidence, launches=doubled)
        copied = replace(launch, case=replace(launch.case, replicate=launch.case.replicate + 1))
        yield (
            "a launch copied as another launch",
            name,
            replace(evidence, launches=(*evidence.launches, copied)),
        )
        for place, record in enumerate(launch.records):
            kind = type(record).__name__
            where = f"{name}, record {place} ({kind})"
            without = replace_records(launch, launch.records[:place] + launch.records[place + 1 :])
            if isinstance(record, Environment):
                yield "host facts removed from one launch", where, _with(evidence, number, without)
            else:
                yield f"one record of a rank removed: {kind}", where, _with(evidence, number, without)
            if place % 5 == 0:
                twice = replace_records(launch, (*launch.records, record))
                yield f"one record duplicated: {kind}", where, _with(evidence, number, twice)
            for what, damage in _CONTRADICTIONS.get(kind, {}).items():
                other = (*launch.records[:place], damage(record), *launch.records[place + 1 :])
                if place % 3 == 0:
                    yield what, where, _with(evidence, number, replace_records(launch, other))
    yield from _of_hosts(evidence)
    yield from _of_stages(evidence)
    yield from _of_devices(evidence)
    yield from _of_facts(evidence)
    yield from _of_rules(evidence)


def replace_records(launch: CaseRecords, records: tuple[Any, ...]) -> CaseRecords:
    """Return a launch with different records."""
    return CaseRecords(case=launch.case, records=records, torn=launch.torn)


def _with(evidence: Evidence, number: int, launch: CaseRecords | None) -> Evidence:
    rest = (evidence.launches[:number], evidence.launches[number + 1 :])
    return replace(evidence, launches=(*rest[0], *(() if launch is None else (launch,)), *rest[1]))


def _of_devices(evidence: Evidence) -> Iterator[Change]:
    """Yield a rank that reports using another GPU than planned."""
    for number, launch in enumerate(evidence.launches):
        for place, record in enumerate(launch.records):
            if isinstance(record, Setup):
                other = replace(record, device=replace(record.device, uuid="GPU-elsewhere"))
                records = (*launch.records[:place], other, *launch.records[place + 1 :])
                where = f"{launch.case.case_id}, rank {record.rank}"
                yield "a GPU renamed", where, _with(evidence, number, replace_records(launch, records))


def _of_hosts(evidence: Evidence) -> Iterator[Change]:
    """Yield a missing host, and for each launch a host that its ranks report under another name."""
    for host in dict.fromkeys(told.host for launch in evidence.launches for told in launch.of(Environment)):
        there = tuple(launch for launch in evidence.launches if host not in launch.case.placement.hosts)
        yield "a host removed", host, replace(evidence, launches=there)
        for number, launch in enumerate(evidence.launches):
            hosts = launch.case.placement.hosts
            if host in hosts:
                names = tuple("elsewhere" if name == host else name for name in hosts)
                placement = replace(launch.case.placement, hosts=names)
                moved = replace(launch, case=replace(launch.case, placement=placement))
                yield "a host renamed", f"{host}, {launch.case.case_id}", _with(evidence, number, moved)


def _of_stages(evidence: Evidence) -> Iterator[Change]:
    """Yield the removal of all launches of a stage."""
    for stage in ("gemm", "collective", "training"):
        rest = tuple(x for x in evidence.launches if not x.case.case_id.startswith(stage))
        yield "a stage removed", stage, replace(evidence, launches=rest)


def _of_facts(evidence: Evidence) -> Iterator[Change]:
    """Yield changes to what a host reports in all its launches."""
    for host in dict.fromkeys(told.host for launch in evidence.launches for told in launch.of(Environment)):
        yield "a host that reports nothing", host, _facts(evidence, host, lambda _: None)
        for kind, change in _ONCE.items():
            yield kind, host, _facts(evidence, host, partial(change, index=0), in_first_alone=True)
        for index in range(2):
            for kind, change in _DRIVER.items():
                where = f"{host}, GPU {index}"
                yield kind, where, _facts(evidence, host, partial(change, index=index))


def _facts(
    evidence: Evidence,
    host: str,
    change: Callable[[dict[str, Any]], dict[str, Any] | None],
    *,
    in_first_alone: bool = False,
) -> Evidence:
    launches: list[CaseRecords] = []
    is_over = False
    for launch in evidence.launches:
        records = []
        for record in launch.records:
            if isinstance(record, Environment) and record.host == host and not is_over:
                is_over = in_first_alone
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


def _other_torch(facts: dict[str, Any], index: int) -> dict[str, Any]:
    return {**facts, "torch": str(index)}


def _other_driver(facts: dict[str, Any], index: int) -> dict[str, Any]:
    facts["accelerators"]["drivers"] = {"seeded": {"version": str(index)}}
    return facts


def _lower_limit(facts: dict[str, Any], index: int) -> dict[str, Any]:
    _listed(facts, index)["static"]["power_limit_w"] = 300.0
    return facts


def _without_limit(facts: dict[str, Any], index: int) -> dict[str, Any]:
    del _listed(facts, index)["static"]["power_limit_w"]
    return facts


_DRIVER: Mapping[str, DeviceChange] = {
    "a GPU that no driver lists": _without_device,
    "a GPU that was not measured": _more_devices,
    "a GPU that torch did not see": _invisible,
    "one GPU on two hosts": _twin,
    "a driver that does not answer": _silent,
    "the counter remapped_rows_failed removed": _without_counter("remapped_rows_failed"),
    "the counter remapped_rows_pending removed": _without_counter("remapped_rows_pending"),
    "the counter ecc_uncorrected_count removed": _without_counter("ecc_uncorrected_count"),
    "an uncorrected error": _wrong_counter,
    "the power limit removed": _without_limit,
}


_ONCE: Mapping[str, DeviceChange] = {
    "no GPU listed in an earlier launch": _without_device,
    "a driver that did not answer in an earlier launch": _silent,
    "a counter that an earlier launch lacks": _without_counter("ecc_uncorrected_count"),
    "a GPU that only an earlier launch lists": _more_devices,
    "an uncorrected error only in an earlier launch": _wrong_counter,
    "a different torch in an earlier launch": _other_torch,
    "a different driver in an earlier launch": _other_driver,
    "a lower power limit in an earlier launch": _lower_limit,
}
"""Changes made to a host's report, but only in the first launch."""
_CONTRADICTIONS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "Start": {"a different number of ranks": lambda start: replace(start, world_size=start.world_size + 1)},
    "Setup": {
        "results over gloo": lambda setup: replace(setup, backend="gloo"),
        "a GPU without a name": lambda setup: replace(setup, device=replace(setup.device, uuid=None)),
    },
    "Window": {
        "a window of half as many steps": lambda one: replace(one, num_steps=one.num_steps // 2),
        "a window of another rank": lambda one: replace(one, rank=one.rank + 1),
    },
    "CollectiveTrial": {
        "a trial that compared nothing": lambda trial: replace(trial, num_checked=0),
        "a trial with a wrong element": lambda trial: replace(trial, num_wrong=1),
        "a trial of fewer iterations": lambda trial: replace(trial, durations_s=trial.durations_s[:1]),
        "a trial of another rank": lambda trial: replace(trial, rank=trial.rank + 1),
        "a trial of another size": lambda trial: replace(trial, asked_bytes=8),
        "a trial of another operation": lambda trial: replace(trial, operation="broadcast"),
    },
    "RankResult": {"an end of another rank": lambda end: replace(end, rank=end.rank + 1)},
}
"""Ways in which a record can differ from the others."""


def _of_rules(evidence: Evidence) -> Iterator[Change]:
    options = evidence.config.suite_options["validate"]
    for place, rule in enumerate(options["rules"]):
        rest = [*options["rules"][:place], *options["rules"][place + 1 :]]
        own = {**evidence.config.suite_options, "validate": {**options, "rules": rest}}
        config = evidence.config.model_copy(update={"suite_options": own})
        yield "a rule removed", str(rule.get("name") or rule.get("check")), replace(evidence, config=config)


def main() -> None:
    """Print how many changes of each kind stay READY, and which."""
    with TemporaryDirectory() as folder:
        evidence = healthy(Path(folder))
        print(f"undamaged: {word_of(evidence)}")
        judged = [(kind, where, word_of(changed)) for kind, where, changed in changes(evidence)]
    for kind in dict.fromkeys(kind for kind, _, _ in judged):
        words = [word for name, _, word in judged if name == kind]
        raised = [word for word in words if ": " in word]
        said = f", {len(raised)} cannot be evaluated ({raised[0][:60]})" if raised else ""
        print(f"{len(words):5}  {words.count('READY'):5} READY  {kind}{said}")
    ready = [(kind, where) for kind, where, word in judged if word == "READY"]
    print(f"{len(judged)} changes, {len(ready)} READY")
    for kind, where in ready:
        print(f"  {kind}: {where}: {HARMLESS.get(kind, 'NOT KNOWN TO BE HARMLESS')}")


if __name__ == "__main__":
    main()
