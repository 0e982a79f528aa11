"""When, where, on which devices and by which versions was it measured, and how is it repeated?

In: run.json, the records of the launches and the facts of their hosts; a recording; or what a machine tells
now. Out: the one `Provenance` that every page and every export for people opens with. What is not known is
None with the reason, and never filled in.

>>> device_text({"NVIDIA H200": 8, "NVIDIA A100": 1})
'8 × NVIDIA H200, NVIDIA A100'
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Final

from gpuproof import __version__
from gpuproof.errors import RecordError
from gpuproof.readings.parsing import fast_json
from gpuproof.readings.recording import RecordingData
from gpuproof.records.collected import CaseRecords
from gpuproof.records.page import Fact, Provenance
from gpuproof.records.result import Result
from gpuproof.records.run import Setup, Start
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory
from gpuproof.verdict.rollup import listed

SHOWN: Final = 12
"""Digits of a hash."""
NO_FACTS: Final = "no launch wrote down what its host has"
NO_COMMAND: Final = "run.json does not hold it: it was started from Python, or by an older version"
NO_GPU: Final = "no GPU was used"
NO_FRAMEWORK: Final = "a recording reads drivers and the host, and no framework"
Hosts = Mapping[str, Mapping[str, Any]]
"""Host → its facts, as environment.json has them."""


def of_run(
    description: Mapping[str, Any],
    launches: Sequence[CaseRecords],
    hosts: Hosts,
    conditions: Mapping[str, Any],
) -> Provenance:
    """Return where a run's figures come from; without its launches the devices are those of `conditions`."""
    devices = _devices_of(launches) or _devices_in(conditions)
    setup = next((setup for launch in launches for setup in launch.setups), None)
    used = None if setup is None else setup.data_used
    no_hash = "result.json does not hold it" if setup is None else "no samples are read from a file"
    named = list(dict.fromkeys(launch.host_of(start) for launch in launches for start in launch.of(Start)))
    recipe = json.dumps(description["config"], sort_keys=True).encode()
    return Provenance(
        facts=(
            Fact("date", _date(datetime.fromisoformat(str(description["created"])))),
            Fact("host", listed(named or list(hosts)) or None, NO_FACTS),
            Fact("device", device_text(devices), "no launch wrote down what it computed on"),
            *_versions(hosts.values(), NO_FACTS, uses_gpu=any(name != "CPU" for name in devices)),
            Fact("gpuproof", str(description["gpuproof_version"])),
        ),
        command=Fact("command", description.get("command"), NO_COMMAND),
        details=(
            Fact(
                "recipe",
                f"{str(description['source']).removeprefix('recipe ')}, SHA-256 {_sha256(recipe)} of all its keys",
            ),
            Fact(
                "data",
                f"SHA-256 {used.sha256[:SHOWN]}… of {used.sha256_of}" if used and used.sha256 else None,
                no_hash,
            ),
            Fact("commit", description["commit_hash"], "none was recorded"),
        ),
    )


def read_environment(run: RunDirectory) -> dict[str, Any] | None:
    """Read what each host of a run has (environment.json); None where it is not known.

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
    return facts if isinstance(facts, dict) else None


def read_provenance(run: RunDirectory, result: Result | None = None) -> Provenance:
    """Return where a run's figures come from, by its files alone: its launches are not read.

    Raises:
        RecordError: one of the files is damaged.
    """
    result = result or run.read_result()
    conditions = {} if result is None else result.conditions
    return of_run(run.description(), (), read_environment(run) or {}, conditions)


def of_old_tree() -> Provenance:
    """Return that a folder of an older test matrix says nothing of where its figures come from."""
    names = ("date", "host", "device", "driver", "CUDA or ROCm", "torch")
    reason = "a folder of an older test matrix does not say"
    unknown = tuple(Fact(name, None, reason) for name in names)
    gpuproof = Fact("gpuproof", f"{__version__} made this page")
    return Provenance(facts=(*unknown, gpuproof), command=Fact("command", None, reason))


def of_recording(recording: RecordingData) -> Provenance:
    """Return where the readings of a recording come from."""
    header, began_s = recording.recording, recording.began_unix_s
    models = Counter(track.identity.name for track in recording.devices)
    drivers = [track.identity.static.get("driver_version") for track in recording.devices]
    date = None if began_s is None else _date(datetime.fromtimestamp(began_s, timezone.utc))
    return Provenance(
        facts=(
            Fact("date", date, "this format has no date"),
            Fact("host", header.host or None, "this format names no host"),
            Fact("device", device_text(models), NO_GPU.replace("used", "read")),
            Fact("driver", _together(drivers), "the recording has no driver's version"),
            Fact("CUDA or ROCm", None, NO_FRAMEWORK),
            Fact("torch", None, NO_FRAMEWORK),
            Fact("gpuproof", header.gpuproof_version or None, f"imported from {recording.format}"),
        ),
        command=Fact(
            "command",
            shlex.join(header.command) if header.command else None,
            "a recording keeps the command beside it only where it is asked to (--keep-command)",
        ),
    )


def of_machine(facts: Mapping[str, Any], *, command: str) -> Provenance:
    """Return where facts come from that this machine tells now."""
    devices = (facts.get("accelerators") or {}).get("devices") or ()
    return Provenance(
        facts=(
            Fact("date", _date(datetime.now(timezone.utc))),
            Fact("host", str(facts["host"])),
            Fact("device", device_text(Counter(str(one["name"]) for one in devices) or {"CPU": 1})),
            *_versions([facts], "this Python has none", uses_gpu=bool(devices)),
            Fact("gpuproof", __version__),
        ),
        command=Fact("command", command),
    )


def side_by_side(a: Provenance, b: Provenance, *, command: str) -> Provenance:
    """Return where the figures of A and B come from: once what both share; `command` compares them again."""
    return Provenance(
        facts=tuple(_both(*pair) for pair in zip(a.facts, b.facts, strict=True)),
        command=Fact("command", command),
        details=tuple(
            _both(*pair) for pair in zip((a.command, *a.details), (b.command, *b.details), strict=False)
        ),
    )


def _both(a: Fact, b: Fact) -> Fact:
    if a == b:
        return a
    texts = [f"{side} {fact.text or f'not known: {fact.missing}'}" for side, fact in (("A", a), ("B", b))]
    return Fact(" or ".join(dict.fromkeys((a.name, b.name))), "; ".join(texts))


def device_text(models: Mapping[str, int]) -> str | None:
    """Name models of devices with how many there are of each; None where there is none."""
    return ", ".join(f"{num} × {name}" if num > 1 else name for name, num in models.items()) or None


def _devices_of(launches: Iterable[CaseRecords]) -> Counter[str]:
    """Count the devices that ranks computed on, each once however many launches used it."""
    used: dict[object, tuple[str, int]] = {}
    for launch in launches:
        hosts = {start.rank: launch.host_of(start) for start in launch.of(Start)}
        for setup in launch.of(Setup):
            device, num = setup.device, 1 if setup.replicas is None else setup.replicas.num_devices
            place = device.uuid or device.index
            used[hosts.get(setup.rank), device.name, place] = device.name, num
    total: Counter[str] = Counter()
    for name, num in used.values():
        total[name] += num
    return total


def _devices_in(conditions: Mapping[str, Any]) -> Mapping[str, int]:
    name, num = conditions.get("device"), conditions.get("num_devices")
    return {name: num if isinstance(num, int) else 1} if isinstance(name, str) else {}


def _versions(hosts: Iterable[Mapping[str, Any]], missing: str, *, uses_gpu: bool) -> tuple[Fact, ...]:
    """Return driver, CUDA or ROCm, and torch; where hosts differ, all that there are."""
    facts = list(hosts)
    reason = "what its host has does not name it" if facts else missing
    no_gpu = reason if uses_gpu or not facts else NO_GPU
    cuda, rocm, torch = (
        _together(host.get(key) for host in facts) for key in ("torch_cuda", "torch_hip", "torch")
    )
    toolkit = Fact("CUDA", cuda) if cuda else Fact("ROCm" if rocm else "CUDA or ROCm", rocm, no_gpu)
    driver = Fact("driver", _together(map(_driver, facts)), no_gpu)
    return driver, toolkit, Fact("torch", torch, reason)


def _driver(facts: Mapping[str, Any]) -> str | None:
    drivers = (facts.get("accelerators") or {}).get("drivers") or {}
    return ", ".join(f"{vendor} {driver.get('version')}" for vendor, driver in drivers.items()) or None


def _together(values: Iterable[Any]) -> str | None:
    return ", ".join(dict.fromkeys(str(value) for value in values if value)) or None


def _date(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} {when.tzname() or 'no zone recorded'}"


def _sha256(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()[:SHOWN]}…"
