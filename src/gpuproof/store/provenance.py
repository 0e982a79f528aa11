"""Collect the date, hosts, devices and versions of a measurement, and how to repeat it.

The input is run.json, the launch records and the facts about their hosts, or what a machine reports now. The
output is a single `Provenance`, which is shown at the top of every page and every human-readable export.
Unknown values are None with the reason, and are never filled in.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from gpuproof import __version__
from gpuproof.base.errors import RecordError
from gpuproof.base.groups import grouped
from gpuproof.base.units import first_of
from gpuproof.readings.parsing import fast_json
from gpuproof.readings.selection import date_text, device_text, together
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Fact, Provenance
from gpuproof.records.result import Result
from gpuproof.records.run import Start
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory
from gpuproof.verdict.baseline import Baseline

SHOWN, MOST_NAMED = 12, 8
"""Number of hash digits shown, and number of hosts listed."""
VERSIONS: Final = ("torch_cuda", "torch_hip", "torch")
NO_FACTS: Final = "not recorded by any launch"
NO_RECORD: Final = "the runs that the baseline was recorded from did not report it"
NO_COMMAND: Final = "started from Python, or by an older version"
Facts = Mapping[str, Any]
"""Contents of a file about a run or a host, by key."""


def of_run(
    description: Facts, launches: Sequence[CaseRecords], hosts: Mapping[str, Facts], conditions: Facts
) -> Provenance:
    """Return the provenance of a run's results; without launches, devices come from `conditions`."""
    models = _models(launches) or _models_in(conditions)
    setup = next((setup for launch in launches for setup in launch.setups), None)
    used = None if setup is None else setup.data_used
    data = f"SHA-256 {used.sha256[:SHOWN]}… of {used.sha256_of}" if used and used.sha256 else None
    no_data = "result.json does not contain it" if setup is None else "no samples are read from a file"
    names = list(dict.fromkeys(launch.host_of(start) for launch in launches for start in launch.of(Start)))
    recipe = hashlib.sha256(json.dumps(description["config"], sort_keys=True).encode()).hexdigest()[:SHOWN]
    source = str(description["source"]).removeprefix("recipe ")
    return Provenance(
        facts=(
            Fact("date", date_text(datetime.fromisoformat(str(description["created"])))),
            Fact("host", first_of(names or list(hosts), MOST_NAMED) or None, NO_FACTS),
            Fact("device", device_text(models), "not recorded by any launch"),
            *_versions(hosts.values(), NO_FACTS, uses_gpu=_uses_gpu(launches, models)),
            Fact("gpuproof", str(description["gpuproof_version"])),
        ),
        command=Fact("command", description.get("command"), NO_COMMAND),
        details=(
            Fact("recipe", f"{source}, SHA-256 {recipe}… of all its keys"),
            Fact("data", data, no_data),
            Fact("commit", description["commit_hash"], "none was recorded"),
        ),
    )


def read_environment(run: RunDirectory) -> dict[str, Any] | None:
    """Read the facts of each host of a run (environment.json); None if unknown.

    Raises:
        RecordError: the file is damaged.
    """
    path = run.root / layout.ENVIRONMENT
    if not path.is_file():
        return None
    try:
        facts = fast_json(path.read_bytes())
    except ValueError as error:
        raise RecordError(f"cannot be read ({error})", place=str(path)) from error
    if not isinstance(facts, dict):
        return None
    if not all(map(_are_facts, facts.values())):
        raise RecordError("does not contain facts of hosts", place=str(path))
    return facts


def _are_facts(facts: Any) -> bool:
    """Check the shape of one host's facts, as far as they are read here and compared."""
    if not isinstance(facts, dict):
        return False
    cards = facts.get("accelerators") or {}
    if not isinstance(cards, dict):
        return False
    drivers = cards.get("drivers") or {}
    mappings = [facts.get("cpu"), facts.get("environment"), drivers]
    mappings += drivers.values() if isinstance(drivers, dict) else ()
    for rows in (facts.get("devices") or [], cards.get("devices") or []):
        if not isinstance(rows, list):
            return False
        mappings += [0 if row is None else row for row in rows]  # a device is never null
    return all(mapping is None or isinstance(mapping, dict) for mapping in mappings)


def read_provenance(run: RunDirectory, result: Result | None = None) -> Provenance:
    """Return the provenance of a run's results from its result files; launch records are not read.

    Raises:
        RecordError: one of the files is damaged.
    """
    result = result or run.read_result()
    conditions = {} if result is None else result.conditions
    return of_run(run.description(), (), read_environment(run) or {}, conditions)


def of_old_tree() -> Provenance:
    """Return a provenance for files of an older tool, from which none is taken."""
    names = ("date", "host", "device", "driver", "CUDA or ROCm", "torch", "command")
    *facts, command = (Fact(name, None, "not taken from files of an older tool") for name in names)
    return Provenance(facts=(*facts, Fact("gpuproof", f"{__version__} created this page")), command=command)


def of_machine(facts: Facts, *, command: str) -> Provenance:
    """Return the provenance of facts that this machine is reporting now."""
    devices = (facts.get("accelerators") or {}).get("devices") or ()
    return Provenance(
        facts=(
            Fact("date", date_text(datetime.now(timezone.utc))),
            Fact("host", str(facts["host"])),
            Fact("device", device_text(Counter(str(one["name"]) for one in devices) or {"CPU": 1})),
            *_versions([facts], "this Python does not have it", uses_gpu=bool(devices)),
            Fact("gpuproof", __version__),
        ),
        command=Fact("command", command),
    )


def of_command(command: str, *facts: Fact) -> Provenance:
    """Return when and where a command that uses no device ran, plus facts about its subject."""
    return Provenance(
        facts=(
            Fact("date", date_text(datetime.now(timezone.utc))),
            Fact("host", platform.node() or None, "the host has no name"),
            *facts,
            Fact("gpuproof", f"{__version__} on Python {platform.python_version()}"),
        ),
        command=Fact("command", command),
    )


def of_baseline(baseline: Baseline, *, command: str) -> Provenance:
    """Return the provenance of a baseline's values, as recorded."""
    stack = baseline.stack
    toolkits = ("device", "gpu"), ("driver", "driver"), ("CUDA or ROCm", "cuda"), ("torch", "torch")
    subjects = (figure.subject.split("/") for entry in baseline.entries for figure in entry.figures)
    hosts = dict.fromkeys(parts[1] for parts in subjects if parts[0] == "host")
    return Provenance(
        facts=(
            Fact("date", baseline.recorded),
            Fact(
                "host",
                first_of(list(hosts), MOST_NAMED) or None,
                "none of the baseline's values is for a single host",
            ),
            *(Fact(name, stack.get(key), NO_RECORD) for name, key in toolkits),
            Fact("gpuproof", baseline.gpuproof_version),
        ),
        command=Fact("command", command),
    )


def _models(launches: Iterable[CaseRecords]) -> Mapping[str, int]:
    """Count the devices used by ranks, per model; a device used in several launches counts once."""
    used: dict[tuple[object, ...], int] = {}
    for launch in launches:
        hosts = {start.rank: launch.host_of(start) for start in launch.of(Start)}
        for setup in launch.setups:
            place = setup.device.name, hosts.get(setup.rank), setup.device.uuid or setup.device.index
            used[place] = 1 if setup.replicas is None else setup.replicas.num_devices
    models = grouped((str(name), num) for (name, *_), num in used.items())
    return {name: sum(numbers) for name, numbers in models.items()}


def _uses_gpu(launches: Iterable[CaseRecords], models: Iterable[str]) -> bool:
    """Return whether anything was computed on a GPU; a CPU may be reported by its own name."""
    kinds = {setup.device.kind for launch in launches for setup in launch.setups}
    return kinds != {"cpu"} if kinds else any(model != "CPU" for model in models)


def _models_in(conditions: Facts) -> Mapping[str, int]:
    name, num = conditions.get("device"), conditions.get("num_devices")
    return {name: num if isinstance(num, int) else 1} if isinstance(name, str) else {}


def _versions(hosts: Iterable[Facts], missing: str, *, uses_gpu: bool) -> tuple[Fact, ...]:
    """Return driver, CUDA or ROCm, and torch or TensorFlow; if hosts differ, list all of them."""
    facts = list(hosts)
    reason = "the host reports none" if facts else missing
    no_gpu = reason if uses_gpu or not facts else "no GPU was used"
    cuda, rocm, torch = (together(host.get(key) for host in facts) for key in VERSIONS)
    framework = Fact("torch", torch, reason)
    if tensorflow := together(host.get("tensorflow") for host in facts):
        framework = Fact("TensorFlow", tensorflow)
        cuda = together(host.get("tensorflow_cuda") for host in facts)
    toolkit = Fact("CUDA", cuda) if cuda else Fact("ROCm" if rocm else "CUDA or ROCm", rocm, no_gpu)
    return Fact("driver", together(map(_driver, facts)), no_gpu), toolkit, framework


def _driver(facts: Facts) -> str | None:
    drivers = (facts.get("accelerators") or {}).get("drivers") or {}
    return ", ".join(f"{vendor} {driver.get('version')}" for vendor, driver in drivers.items()) or None
