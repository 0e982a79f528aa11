"""Plant every fault, evaluate it and its healthy twin, and report the faults that were missed.

Each fault has a layer in which it occurs, a verdict word that it leads to, and a cause. It counts as found if
the verdict word is among the expected words and the reasons against a better verdict identify the cause, i.e.
contain all of `names`. Its healthy twin is the same fleet without the fault, and must be READY. Device faults
are injected into the driver output of fake devices (`GPUPROOF_FAKE_DEVICES`), which the node-side sampler
reads as in any run. Slow devices and hosts are found from a fleet's own history: healthy fleets, with 0.5 %
variation between days as in `launch_records`, are measured on some days and recorded as a baseline. On
another day, each GPU of the same fleet is compared with that baseline and with its peers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import tomllib

from gpuproof import __version__
from gpuproof.base.errors import EnvironmentUnfitError, ExitCode, GpuproofError, UsageError
from gpuproof.base.files import packaged_text
from gpuproof.launchers.commands import node_side_for
from gpuproof.processes.scratch import scratch_folder
from gpuproof.processes.start import safe_environment
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.records.codec import from_json, to_json
from gpuproof.selftest import judging
from gpuproof.selftest.fleet import Fleet, Planted, with_fault
from gpuproof.selftest.judging import EDGE, FIGURES, Turned, floor, judge_fleet, judge_links, write_fleet
from gpuproof.selftest.launch_records import listed_device
from gpuproof.selftest.worker import (
    judge_copies,
    judge_fingerprints,
    judge_products,
    judge_training,
    reason_against,
)
from gpuproof.suites.validate import SUITE
from gpuproof.verdict.baseline import RunValues, record_baseline, stack_of
from gpuproof.verdict.facts import facts_by_host

DAYS = 5
PRODUCTS = {
    "each": "gpu",
    "measure": {"name": "throughput", "labels": {"workload": "gemm", "at_once": False, "m": EDGE}},
}
RULES: tuple[Mapping[str, Any], ...] = (
    {"name": "products as before", **PRODUCTS, "expect": {"baseline": "measured"}},
    {"name": "products alike", **PRODUCTS, "expect": {"peers": True}},
)
PER_HOST = 8
NUM_DEVICES = 4
RECORDED_S = 4.0
"""Length of a recording, in seconds: long enough for events on the last device, which occur after two or
three seconds."""
MARGIN_S = 0.5
LAST = f"FAKE-{NUM_DEVICES - 1:04d}"
TIMEOUT_S = 60.0
BUSY = floor("devices are busy", "gpu", "utilisation", {"stage": "training"}, (80.0, "%"))
CHECKS = ("xid",)
STATE = ("ecc_uncorrected_count", "remapped_rows_failed", "remapped_rows_pending")
Layer = Literal["worker", "device", "records", "rules"]
Twin = Literal[
    "fleet", "events", "devices", "links", "products", "training", "fingerprints", "copies", "past",
    "pod", "alone",
]  # fmt: skip
REFUSED = "REFUSED"
"""Result for rules that cannot evaluate anything, which is a usage error."""
HEALTHY = "READY"
NOT_RUN = "NOT RUN"
SIMULATED: tuple[Twin, ...] = ("products", "training", "fingerprints", "copies")
BY_SEED: tuple[Twin, ...] = ("fleet", "links", "past", "alone")
"""Small twins that depend on chance and need no processes: these are tried with as many seeds as
requested."""
SIDE_BY_SIDE: dict[Layer, int] = {"worker": 2, "device": 7, "records": 1}
"""Number of concurrent tests, by the resource that they need. Ranks that compute would only wait for each
other on a small machine; recording a driver takes a fixed time (all six faults and their twin run at once);
made-up records are written and evaluated in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """A fault or a healthy twin, with its result."""

    fault: str
    layer: Layer | None
    """Layer of the fault; None for a twin."""
    expected: str
    got: str
    cause: str
    """For a detected fault, the line that identifies the cause; for a missed fault, the result that was
    reported instead; empty for a passing twin, because a warning that did not change the verdict is not a
    false alarm."""
    is_found: bool
    """Whether the fault was found; for a twin, whether it was not blamed."""
    num_tried: int = 1
    num_missed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SelftestReport:
    """The results for all faults and all twins."""

    faults: tuple[FaultRow, ...]
    healthy: tuple[FaultRow, ...]

    @property
    def exit_code(self) -> ExitCode:
        """Return 3 if a fault was missed or a healthy twin was blamed, 4 if something was not run."""
        rows = (*self.faults, *self.healthy)
        if any(not row.is_found and row.got != NOT_RUN for row in rows):
            return ExitCode.FAILED
        return ExitCode.INCONCLUSIVE if any(row.got == NOT_RUN for row in rows) else ExitCode.DONE


def run_selftest(*, num_seeds: int, is_quick: bool) -> SelftestReport:
    """Inject each fault, or one per class; evaluate it and its twin, with `num_seeds` random seeds."""
    unable = reason_against()
    planted = [fault for fault in FAULTS if fault.is_quick or not is_quick]
    twins = [name for name in TWINS if any(fault.twin == name for fault in planted)]
    with scratch_folder("selftest-") as scratch:
        bench = PlantedTests(scratch=scratch, unable=unable, num_seeds=num_seeds)
        with ExitStack() as stack:
            pools = {
                layer: stack.enter_context(ThreadPoolExecutor(num)) for layer, num in SIDE_BY_SIDE.items()
            }
            faults = [pools[_needs(fault.twin)].submit(bench.fault, fault) for fault in planted]
            healthy = [pools[_needs(name)].submit(bench.twin, name) for name in twins]
            return SelftestReport(
                faults=tuple(row.result() for row in faults), healthy=tuple(row.result() for row in healthy)
            )


def _needs(twin: Twin) -> Layer:
    """Return what a test needs: ranks, a recording, or only written records."""
    if twin in SIMULATED:
        return "worker"
    return "device" if twin == "devices" else "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedTests:
    """Faults and twins, each evaluated in a separate folder."""

    scratch: Path
    unable: str | None
    num_seeds: int

    def twin(self, name: Twin) -> FaultRow:
        """Evaluate a healthy twin with every seed; a single false alarm is decisive."""
        draws = self._draws(name, TWINS[name])
        worst = next((one for one in draws if one.word != HEALTHY), draws[0])
        return FaultRow(
            fault=f"none ({name})",
            layer=None,
            expected=HEALTHY,
            got=worst.word,
            cause="" if worst.word == HEALTHY else next(iter(worst.against), "nothing was reported"),
            is_found=worst.word == HEALTHY,
            num_tried=len(draws),
        )

    def fault(self, fault: Fault) -> FaultRow:
        """Evaluate a fault with every seed; it counts as missed if more seeds miss it than allowed."""
        draws = self._draws(fault.twin, fault.judge)
        missed = [one for one in draws if named(fault, one) is None]
        is_found = len(draws) - len(missed) >= fault.least_found * len(draws)
        worst = next((one for one in draws if (one in missed) != is_found), draws[0])
        cause = named(fault, worst)
        return FaultRow(
            fault=fault.name,
            layer=fault.layer,
            expected=" or ".join(fault.expected),
            got=worst.word,
            cause=cause or next(iter(worst.against), "nothing was reported"),
            is_found=is_found,
            num_tried=len(draws),
            num_missed=len(missed),
        )

    def _draws(self, twin: Twin, judge: Callable[[Path, int], Turned]) -> Sequence[Turned]:
        if twin in SIMULATED and self.unable is not None:
            return [Turned(word=NOT_RUN, against=(self.unable,))]
        seeds = range(self.num_seeds if twin in BY_SEED else 1)
        return [self._draw(judge, seed) for seed in seeds]

    def _draw(self, judge: Callable[[Path, int], Turned], seed: int) -> Turned:
        try:
            with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                return judge(Path(folder), seed)
        except GpuproofError as error:
            return Turned(word=NOT_RUN, against=(str(error),))


def named(fault: Fault, verdict: Turned) -> str | None:
    """Return the line that identifies the cause; None if it is missing or the verdict is unexpected."""
    if verdict.word not in fault.expected:
        return None
    return next((line for line in verdict.against if all(part in line for part in fault.names)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault from the catalogue (`faults.toml`)."""

    name: str
    layer: Layer
    twin: Twin
    expected: tuple[str, ...] = ("NOT-READY", "READY-WITH-EXCLUSIONS")
    """The accepted verdict words."""
    names: tuple[str, ...]
    """Strings that must all appear in a single line of the reasons why the verdict is not better."""
    planted: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that describe the fault to the function that evaluates its twin."""
    least_found: float = 1.0
    """Minimum fraction of seeds for which the fault must be found; a loss at the resolution limit is found
    for 95 % of seeds."""
    is_quick: bool = True
    """Whether the quick test uses this fault to represent its class."""

    def judge(self, folder: Path, seed: int) -> Turned:
        """Plant the fault in a folder, with a seed, and evaluate the result."""
        return TWINS[self.twin](folder, seed, **self.planted)


def judge_seeded(
    folder: Path,
    seed: int,
    *,
    board: str = "Seeded GPU",
    figures: Sequence[str] = FIGURES,
    expected_hosts: Sequence[str] = (),
    more_rules: str | None = None,
    **planted: Any,
) -> Turned:
    """Evaluate a three-host fleet with planted faults by its rules for `figures` and `more_rules`."""
    fleet = Fleet(seed=seed, device_name=board, planted=from_json(Planted, planted))
    try:
        return judge_fleet(
            fleet, folder, figures=figures, more_rules=more_rules, expected_hosts=list(expected_hosts)
        )
    except UsageError as error:
        return Turned(word=REFUSED, against=(str(error),))


def judge_ruled(
    folder: Path, seed: int, *, expect: str | None = None, measure: str = "throughput", **planted: Any
) -> Turned:
    """Evaluate such a three-host fleet; if `expect` is given, add a rule for its GEMMs or links."""
    if expect is None:
        return judge_seeded(folder, seed, **planted)
    is_of_links = measure == "bus bandwidth"
    labels = "" if is_of_links else "workload: gemm, at_once: false, m: 4096"
    text = (
        f"rules:\n- name: one more\n  each: {'whole' if is_of_links else 'gpu'}\n"
        f"  measure: {{name: {measure}, labels: {{{labels}}}}}\n  expect: {expect}\n"
    )
    figures = FIGURES[:2] if is_of_links else FIGURES[1:]
    return judge_seeded(folder, seed, more_rules=text, figures=figures, **planted)


def _two_gpus(folder: Path, seed: int, *, num_listed: int = 2) -> Turned:
    """Evaluate a two-GPU host; its driver lists `num_listed` devices; no expected number is given."""
    fleet = Fleet(hosts=("node1",), seed=seed, is_counted=False)
    listed = [listed_device(fleet, "node1", index) for index in range(num_listed)]
    return judge_fleet(replace(fleet, listed=listed), folder)


def judge_past(
    folder: Path, seed: int, *, num_hosts: int = 1, num_slow: int = 0, slower_percent: float = 0.0
) -> Turned:
    """Evaluate a fleet against its history, after the last devices of its last host became slower."""
    fleet = _fleet(num_hosts, seed)
    slow = [fleet.uuid_of(fleet.hosts[-1], PER_HOST - 1 - place) for place in range(num_slow)]
    today = with_fault(replace(fleet, day=0), slower=dict.fromkeys(slow, 1 / (1 - slower_percent / 100)))
    return judge_fleet(today, folder, rules=RULES, figures=FIGURES[1:], baseline=_past(num_hosts, seed))


def _fleet(num_hosts: int, seed: int) -> Fleet:
    hosts = tuple(f"node{number + 1}" for number in range(num_hosts))
    return Fleet(hosts=hosts, num_devices=PER_HOST, seed=seed)


@lru_cache(maxsize=4)
def _past(num_hosts: int, seed: int) -> Any:
    """Return the baseline of a healthy fleet as JSON; all faults of one fleet share it."""
    healthy = _fleet(num_hosts, seed)
    runs = []
    for day in range(1, DAYS + 1):
        with scratch_folder("past-") as scratch, TemporaryDirectory(dir=scratch) as folder:
            evidence = write_fleet(replace(healthy, day=day), Path(folder), figures=FIGURES[1:])
            stack = stack_of(facts_by_host(evidence.launches))
            result = SUITE.conclude(evidence).result
        name = f"day-{day}"
        runs.append(RunValues(run_id=name, measures=result.measures, stack=stack, day=f"2026-11-0{day}"))
    return to_json(record_baseline("own", runs, recorded="2026-11-06", gpuproof_version=__version__))


def judge_devices(
    folder: Path, seed: int, *, scenario: str = "normal", slower: float = 1.0, is_lost_later: bool = False
) -> Turned:
    """Evaluate a host on which the last device follows the scenario and is slowed down by a factor.

    With `is_lost_later`, the driver lists no devices during launches after the first.

    Raises:
        EnvironmentUnfitError: the sampler cannot be started, or reads nothing.
    """
    recordings = [record(f"{NUM_DEVICES}:{scenario}", folder / "recording.jsonl")]
    if is_lost_later:
        recordings.append(record("0:normal", folder / "later.jsonl"))
    read = load_recording(recordings[0])
    fleet = Fleet(
        hosts=("node1",),
        num_devices=NUM_DEVICES,
        uuid="FAKE-{index:04d}",
        device_name="Fake device",
        listed=[_listed(read, place) for place in range(len(read.devices))],
        begins_monotonic_s=read.recording.monotonic_s + MARGIN_S,
        seed=seed,
        window_s=max(0.1, read.duration_s - 2 * MARGIN_S),
    )
    if slower != 1.0:
        fleet = with_fault(fleet, slower={LAST: slower})
    return judge_fleet(fleet, folder, recordings=recordings, rules=[BUSY], checks=CHECKS)


def record(devices: str, path: Path) -> Path:
    """Record fake devices (given as `N:SCENARIO`) with the node-side sampler.

    Raises:
        EnvironmentUnfitError: the sampler cannot be started, or fails.
    """
    environment = safe_environment() | {"GPUPROOF_FAKE_DEVICES": devices}
    with node_side_for(None) as worker:
        words = ["record", "--out", str(path), "--duration", str(RECORDED_S), "--interval", "0.1"]
        command = [sys.executable, *worker, *words, "--quiet"]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    if done.returncode or not path.is_file():
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentUnfitError(f"the sampler failed: {last}", place="selftest")
    return path


def _listed(read: RecordingData, place: int) -> dict[str, Any]:
    """Return a device as listed in a host's facts, with the last values of its counters."""
    identity = read.devices[place].identity
    last = read.counters[-1].devices.get(str(identity.physical_index), {}) if read.counters else {}
    state = {name: last[name] for name in STATE if name in last}
    missing = {name: "not supported by the driver" for name in STATE if name not in state}
    return {**to_json(replace(identity, framework_index=place)), "state": state, "state_unavailable": missing}


TWINS: dict[Twin, Callable[..., Turned]] = {
    "fleet": judge_ruled,
    "events": judging.judge_events,
    "devices": judge_devices,
    "links": judge_links,
    "products": judge_products,
    "training": judge_training,
    "fingerprints": judge_fingerprints,
    "copies": judge_copies,
    "past": judge_past,
    "pod": partial(judge_past, num_hosts=8),
    "alone": _two_gpus,
}
"""The function that evaluates each twin, called with a folder and a seed; without further arguments, no fault
is planted."""
FAULTS = tuple(
    from_json(Fault, row, place="faults.toml")
    for row in tomllib.loads(packaged_text("selftest/faults.toml"))["faults"]
)
