"""One probe on one rank: prepared, then run inside a window; results are recorded as found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch.distributed.distributed_c10d import Store

from gpuproof.records.case import Case, ProbeWork
from gpuproof.records.work.probe import ProbeName, ProbeReading
from gpuproof.worker.probes.fingerprint import take_fingerprints
from gpuproof.worker.probes.link import measure_links
from gpuproof.worker.probes.nccl_ras import ask_nccl_ras
from gpuproof.worker.probes.nccl_tests import run_nccl_tests
from gpuproof.worker.probes.overlap import measure_overlap
from gpuproof.worker.probes.pattern import try_memory
from gpuproof.worker.probes.storage import try_storage
from gpuproof.worker.rank.bench import Bench, prepare_bench, setup_without_model, window_of
from gpuproof.worker.rank.identity import RankIdentity
from gpuproof.worker.rank.recorder import Recorder

PROBES: Mapping[ProbeName, Callable[[Any, Bench], Iterator[ProbeReading]]] = {
    "link": measure_links,
    "pattern": try_memory,
    "fingerprint": take_fingerprints,
    "overlap": measure_overlap,
    "storage": try_storage,
    "nccl_tests": run_nccl_tests,
    "nccl_ras": ask_nccl_ras,
}
"""Each probe is passed its keys and the bench."""


def run_probe_case(
    case: Case,
    work: ProbeWork,
    *,
    identity: RankIdentity,
    recorder: Recorder,
    store: Store | None = None,
) -> None:
    """Run the probe on this rank; its last record is the result.

    Raises:
        EnvironmentUnfitError: this rank lacks its device, its backend, or the specified folder.
    """
    with recorder.phase("prepare"):
        bench = prepare_bench(case, identity=identity, recorder=recorder, store=store)
        name = work.probe.name
        find = partial(PROBES[name], getattr(work.probe, name), bench)
    recorder.write(setup_without_model(bench, precision=work.probe.name, item="repeats"))
    with window_of(bench, expected_steps=None, stop_reason="the probe was completed"):
        for figure in find():
            recorder.write(figure)
            bench.write_progress()
        bench.ranks.barrier()
    recorder.finish()
    bench.ranks.close()
