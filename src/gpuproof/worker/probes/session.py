"""One probe on one rank: prepared, run inside a window, each figure written down as it is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch.distributed.distributed_c10d import Store

from gpuproof.records.case import Case, ProbeWork
from gpuproof.records.work.probe import ProbeFigure, ProbeSpec
from gpuproof.worker.probes.fingerprint import take_fingerprints
from gpuproof.worker.probes.link import measure_links
from gpuproof.worker.probes.nccl_tests import run_nccl_tests
from gpuproof.worker.probes.overlap import measure_overlap
from gpuproof.worker.probes.pattern import try_memory
from gpuproof.worker.probes.storage import try_storage
from gpuproof.worker.rank.bench import Bench, prepare_bench, setup_without_model, window_of
from gpuproof.worker.rank.identity import RankIdentity
from gpuproof.worker.rank.recorder import Recorder


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
        EnvironmentUnfitError: this rank lacks its device or backend, or the folder that was named.
    """
    with recorder.phase("prepare"):
        bench = prepare_bench(case, identity=identity, recorder=recorder, store=store)
        find = _finder(work.probe, bench)
    recorder.write(setup_without_model(bench, precision=work.probe.name, item="repeats"))
    with window_of(bench, expected_steps=None, stop_reason="the probe was done"):
        for figure in find():
            recorder.write(figure)
            bench.write_progress()
        bench.ranks.barrier()
    recorder.finish()
    bench.ranks.close()


def _finder(spec: ProbeSpec, bench: Bench) -> Callable[[], Iterator[ProbeFigure]]:
    match spec.name:
        case "link":
            return partial(measure_links, spec.link, bench)
        case "pattern":
            return partial(try_memory, spec.pattern, bench)
        case "fingerprint":
            return partial(take_fingerprints, spec.fingerprint, bench)
        case "overlap":
            return partial(measure_overlap, spec.overlap, bench)
        case "storage":
            return partial(try_storage, spec.storage, bench)
        case "nccl_tests":
            return partial(run_nccl_tests, spec.nccl_tests, bench)
