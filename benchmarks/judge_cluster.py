"""How much time and memory does it take to evaluate a cluster of 4,096 GPUs from its files?

Writes the files of a validation of 512 hosts with eight GPUs: GEMMs on all GPUs of each host, a collective
within each host and over all hosts, and training over all hosts, with made-up values of a healthy fleet with
one slow GPU. Then evaluates the run by the rules of the standard recipe in one fresh process, as `gpuproof
validate --from` does. Prints CPU seconds, peak resident memory and the verdict; asserts nothing. Budget: 10 s
of CPU time and 1 GB. Usage: python benchmarks/judge_cluster.py [HOSTS] [GPUS]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuproof.campaign.campaign import create_run
from gpuproof.selftest.fleet import Fleet, Planted
from gpuproof.selftest.judging import recipe
from gpuproof.selftest.launch_records import write_launch
from gpuproof.store.run import read_case
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate import SUITE

MEASURED = """
import gc, json, resource, sys, time
from pathlib import Path
from gpuproof.cli.main import GARBAGE_AFTER
from gpuproof.campaign.conclude import read_evidence
from gpuproof.store.run import RunDirectory
from gpuproof.suites.validate import SUITE
gc.set_threshold(GARBAGE_AFTER)  # as every command does
taken = [time.process_time()]
evidence = read_evidence(RunDirectory.open(Path(sys.argv[1])))
taken.append(time.process_time())
result = SUITE.conclude(evidence).result
taken.append(time.process_time())
said = [o for o in result.outcomes if o.outcome.status == "FAIL"]
print(json.dumps({"import": taken[0], "read": taken[1] - taken[0], "judged": taken[2] - taken[1],
  "peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "verdict": result.verdict,
  "outcomes": len(result.outcomes), "failed": [f"{o.name}, {o.outcome.subject}" for o in said]}))
"""

ALIKE: Mapping[str, Any] = {
    "name": "matrix products of each device, alike, all at once",
    "each": "gpu",
    "measure": {"name": "throughput", "labels": {"stage": "gemm", "at_once": True}},
    "expect": {"peers": True},
}
RULES: Sequence[Mapping[str, Any]] = (
    *({"include": name} for name in ("environment", "devices", "jobs")),
    ALIKE,
)
"""The rules of the standard recipe, and the prolog recipe's rule for comparing devices."""


def written(folder: Path, fleet: Fleet) -> tuple[Path, int]:
    """Write the run; return its directory and the number of launches."""
    config = recipe(fleet, folder, rules=RULES, is_read=False, alone=False)
    places = tuple(HostPlace(name=host, num_devices=fleet.num_devices) for host in fleet.hosts)
    run = create_run(config, origins={}, source="judge_cluster", places=places)
    state, count = SUITE.begin(config, places), 0
    while cases := list(SUITE.next(state, {}, None)):
        for case in cases:
            launch = run.begin_case(case)
            write_launch(fleet, case, launch)
            state = SUITE.settle(state, read_case(launch))
            count += 1
    return run.root, count


def main() -> None:
    """Write, measure, print."""
    hosts, gpus = (int(word) for word in [*sys.argv[1:3], *("512", "8")[len(sys.argv) - 1 :]])
    slow = Planted(slower={"GPU-node7-3": 1.2})
    fleet = Fleet(hosts=tuple(f"node{n}" for n in range(1, hosts + 1)), num_devices=gpus, planted=slow)
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        root, count = written(Path(folder), fleet)
        print(
            f"{hosts} hosts with {gpus} GPUs, {count} launches, written in {time.monotonic() - start:.0f} s"
        )
        words = [sys.executable, "-c", MEASURED, str(root)]
        found = json.loads(subprocess.run(words, check=True, text=True, capture_output=True).stdout)
    for name in ("import", "read", "judged"):
        print(f"{name:<8}{found[name]:7.1f} s of CPU time")
    print(f"peak memory {found['peak_kib'] / 1024:.0f} MiB")
    print(f"{found['verdict']}: {found['outcomes']} outcomes, failed: {', '.join(found['failed']) or 'none'}")


if __name__ == "__main__":
    main()
