"""Evaluate compute faults injected into simulated devices, using real ranks and the real command.

This requires the simulated devices package (`simulator/`). The verdict is compared before it is capped,
because results of simulated devices are never READY.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.base.files import write_text
from gpuproof.processes.start import safe_environment
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.outcome import Judged, kind_of
from gpuproof.records.result import Measure
from gpuproof.selftest.judging import TOLERANCE, Turned, floor, turned
from gpuproof.verdict.aspects import RequiredAspect, cells_of
from gpuproof.verdict.facts import FleetFacts
from gpuproof.verdict.rollup import roll_up
from gpuproof.verdict.rules.judge import judge_rules
from gpuproof.verdict.rules.load import read_rules

SIMULATOR = "gpuproof_simgpu"
FLOPS_PER_S = 1e9
"""Declared rate of a simulated device: low enough that even a busy CPU stays ahead of it."""
QUICK_FLOPS_PER_S = 1e12
"""Declared rate of a simulated device if times are not evaluated."""
EDGE = 256
PATIENCE_S = 120
"""Seconds after which a rank counts as hanging: on a busy machine, ranks start slowly."""
HANG_S = 10
BEHIND = 0.05
"""Maximum fraction of a simulated device's declared rate that launch overhead may cost in GEMMs of this
size."""
TIMEOUT_S = 300.0
QUIETLY = (
    *("--monitoring.enabled=false", "--run.commit_hash=null", "--run.run_id=selftest", "--run.repeats=1"),
    *("--distributed.threads_per_rank=1", "--json"),
)
EQUAL_RESULTS = RequiredAspect(aspect="right results", title="equal results", measure="wrong values")
ASPECTS: Mapping[str, Mapping[str, Any]] = {
    "gemm": {"aspect": "compute", "title": "a GPU", "measure": "throughput", "labels": {"stage": "gemm"}},
    "training": {"aspect": "right results", "each": "whole", "title": "finite losses", "measure": "launches"},
    "links": {"aspect": "right results", "each": "link", "title": "right copies", "measure": "wrong values"},
}
"""Requirements of each stage for READY."""
NOTHING_WRONG = """
rules:
- name: nothing is wrong
  each: gpu
  measure: {name: wrong values, labels: {pattern: fingerprint}}
  expect: {at_most: 0, unit: "1"}
"""
KEEPS_ITS_PACE = {
    "name": "it keeps its pace",
    "required": False,
    "each": "whole",
    "measure": {"name": "step-time drift", "labels": {"case": "training"}},
    "expect": {"at_most": 1, "unit": "1"},
}
"""Rule for steps that are so short that the host determines their duration: all that matters is whether the
model trains."""
NOBODY_LISTENS = {"check": "xid", "required": False}
"""Rule for launches without a sampler."""
FINGERPRINTS = (
    *("--probe.name=fingerprint", "--probe.fingerprint.edge=64", "--probe.fingerprint.heat_s=0.05"),
    *("--probe.fingerprint.rounds=2", "--nproc=3", "--distributed.device=simgpu"),
)


def reason_against() -> str | None:
    """Return why nothing can be simulated here; None if simulation is possible."""
    if find_spec(SIMULATOR) is None:
        return "the simulated devices package is not installed (pip install ./simulator)"
    return None if find_spec("torch") is not None else "torch is not installed"


def judge_products(folder: Path, _seed: int = 0, **fault: Any) -> Turned:
    """Validate GEMMs on a simulated device with a fault."""
    return _validated(folder, fault, "--validate.stages=[gemm]", stage="gemm")


def judge_copies(folder: Path, _seed: int = 0, **fault: Any) -> Turned:
    """Validate copies between the host and a simulated device with a fault."""
    link = {"min_bytes": "64K", "max_bytes": "64K", "host_memory": ["pinned"], "iterations": 10}
    probes = json.dumps({"link": link})
    return _validated(
        folder, fault, "--validate.stages=[links]", f"--validate.probes={probes}", stage="links"
    )


def judge_training(folder: Path, _seed: int = 0, *, words: Sequence[str] = (), **fault: Any) -> Turned:
    """Validate training on a simulated device with a fault, or with additional command arguments."""
    return _validated(folder, fault, "--validate.stages=[training]", *words, stage="training")


def _validated(folder: Path, fault: Mapping[str, Any], *words: str, stage: str) -> Turned:
    products = {"workload": "gemm", "at_once": False, "m": EDGE}
    healthy = FLOPS_PER_S * (1 - BEHIND) / (1 - TOLERANCE)
    rules = {
        "gemm": floor("matrix products are fast", "gpu", "throughput", products, (healthy, "FLOP/s")),
        "training": KEEPS_ITS_PACE,
    }
    stage_rules = [rules[stage]] if stage in rules else []
    write_text(folder / "rules.yaml", json.dumps({"rules": [*stage_rules, NOBODY_LISTENS]}))
    aspects = json.dumps([ASPECTS[stage]])
    command = (
        *("validate", "--recipe", "quick", "--device", "simgpu", "--nproc", "1"),
        *("--model", "medium", "--batch-size", "8", "--rules", "rules.yaml"),
        *(f"--validate.aspects={aspects}", f"--validate.gemm_size={EDGE}", "--validate.window_s=1.5"),
        *("--warmup-iterations", "3", "--active-iterations", "40", "--validate.max_drift=1000"),
        f"--distributed.hang_timeout_s={HANG_S if 'hang_in_kernel' in fault else PATIENCE_S}",
        *(*QUIETLY, *words),
    )
    return validation_verdict(_run(folder, command, devices=1, fault=fault))


def validation_verdict(result: Mapping[str, Any]) -> Turned:
    """Return the uncapped verdict word in a result.json, and the reasons why it is not better."""
    judged = [from_json(Judged, item, place="outcomes") for item in result["outcomes"]]
    return turned(judged, result["detail"]["readiness"])


def judge_fingerprints(folder: Path, _seed: int = 0, **fault: Any) -> Turned:
    """Compare the results of three simulated devices bit by bit; the second device is faulty."""
    result = _run(
        folder,
        ("run", "probe", *FINGERPRINTS, *QUIETLY),
        devices=3,
        fault=fault,
        at=1,
        flops_per_s=QUICK_FLOPS_PER_S,
    )
    return fingerprints_verdict(result)


def fingerprints_verdict(result: Mapping[str, Any]) -> Turned:
    """Return the verdict on a result.json of compared fingerprints, in which no value may be wrong."""
    measures = [from_json(Measure, item, place="measures") for item in result["measures"]]
    judged = [from_json(Judged, item, place="outcomes") for item in result["outcomes"]]
    rules = read_rules(NOTHING_WRONG, source="selftest")
    judged += judge_rules(rules, FleetFacts(measures=measures))
    gpus = list(dict.fromkeys(m.subject for m in measures if kind_of(m.subject) == "gpu"))
    table = cells_of([EQUAL_RESULTS], {"gpu": gpus}, judged=judged, measures=measures, detects=0.0)
    readiness = roll_up(judged, table=table)
    return turned(judged, to_json(readiness))


def _run(
    folder: Path,
    words: Sequence[str],
    *,
    devices: int,
    fault: Mapping[str, Any],
    at: int = 0,
    flops_per_s: float = FLOPS_PER_S,
) -> Mapping[str, Any]:
    """Run the command on simulated devices, including one faulty device; return its result.

    Raises:
        EnvironmentUnfitError: the command returned no result.
    """
    declared = {"devices": devices, "flops_per_s": flops_per_s, "faults": {str(at): dict(fault)}}
    environment = safe_environment() | {"GPUPROOF_SIMGPU": json.dumps(declared)}
    command = [sys.executable, "-m", "gpuproof", *words]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        result: Mapping[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        last = (
            "it did not finish"
            if isinstance(error, subprocess.TimeoutExpired)
            else done.stderr.strip()[-500:]
        )
        raise EnvironmentUnfitError(f"the run returned no result: {last}", place="selftest") from error
    return result
