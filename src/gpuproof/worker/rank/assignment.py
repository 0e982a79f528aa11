"""`python -m gpuproof.worker run SPEC OUT`: run one rank of one case, from first record to exit.

Writes FOLDER/rank-N.jsonl and, as the rank's standard output and error, FOLDER/stderr-N.txt. Whatever ends
the rank is recorded. The process exits as soon as everything is flushed, so check a worker's records rather
than its exit code.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

from gpuproof import __version__
from gpuproof.base.errors import EnvironmentUnfitError, ExitCode
from gpuproof.records.case import (
    Case,
    CollectiveWork,
    CommandWork,
    ModelWork,
    ProbeWork,
    ServingWork,
    StartMode,
    TrainingWork,
    Work,
)
from gpuproof.records.codec import from_json
from gpuproof.records.run import Failure, Start
from gpuproof.worker.rank.failure import failure_from, failure_from_words
from gpuproof.worker.rank.identity import RankIdentity, effective_threads, identity_from
from gpuproof.worker.rank.recorder import Recorder
from gpuproof.worker.rank.watchdog import Heartbeat, LastWords, Watchdog, process_lives
from gpuproof.worker.step.determinism import set_deterministic_environment

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from gpuproof.worker.host.device_share import HeldDevice
    from gpuproof.worker.step.preparation import Prepared


OF_OPTIMIZERS = "torch._dynamo"
"""Module that the first optimizer in a process imports, compiled or not; this takes about half as long as
importing torch itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The case that this rank runs, and where to write its files."""

    case: Case
    identity: RankIdentity
    folder: Path
    run_folder: Path
    parent_pid: int | None
    store: Store | None = None
    """The store to which the ranks of the user's own launcher are already connected."""
    on_done: Callable[[Path], None] = lambda _journal: None
    """Called with the finished journal, once the rank has left its process group."""
    on_failure: Callable[[Path], None] = lambda _journal: None
    """Called with the journal once a rank's failure is recorded. The callback must always return, and
    quickly."""
    start: StartMode = "exec"
    """How this process was created: started directly, or forked with torch already imported
    (`serve_cases`)."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the rank that a launcher requested with `python -m gpuproof.worker run SPEC OUT`."""
    parser = argparse.ArgumentParser(
        prog="gpuproof.worker run", description="one rank of a case, as requested by a launcher"
    )
    parser.add_argument("spec", type=Path, metavar="SPEC", help="the case, as JSON")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder for this replicate's files")
    parser.add_argument("--parent-pid", type=int, help="stop when this process on the same host has exited")
    parser.add_argument(
        "--attached",
        type=int,
        metavar="N",
        help="pass the case to the other ranks of the user's own launcher, as the Nth launch from 0",
    )
    parser.add_argument("--forked", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    spec = json.loads(options.spec.read_text(encoding="utf-8"))
    assignment = Assignment(
        case=from_json(Case, spec, place=str(options.spec)),
        identity=identity_from(os.environ),
        folder=options.out,
        run_folder=options.out.parents[2],
        parent_pid=options.parent_pid,
        start="fork" if options.forked else "exec",
    )
    if options.attached is not None and assignment.identity.world_size > 1:
        from gpuproof.worker.commands.attach import lead

        lead(assignment, spec, launch=options.attached)
    run_assignment(assignment)


def run_assignment(assignment: Assignment) -> NoReturn:
    """Run the rank to completion and exit: 0 if its last record is a result."""
    rank = assignment.identity.rank
    if assignment.parent_pid is not None and not process_lives(assignment.parent_pid):
        # The launcher died while this process was starting, so the folder may belong to another attempt by
        # now.
        raise EnvironmentUnfitError(f"the launcher (process {assignment.parent_pid}) is gone")
    redirect_output(assignment.folder / f"stderr-{rank}.txt")
    heartbeat = Heartbeat()
    recorder = Recorder(assignment.folder / f"rank-{rank}.jsonl", rank=rank, heartbeat=heartbeat)

    def give_last_words(words: LastWords) -> None:
        recorder.write_last_words(failure_from_words(words, rank=rank, heartbeat=heartbeat))
        assignment.on_failure(recorder.path)

    watchdog = Watchdog(
        heartbeat,
        hang_timeout_s=assignment.case.work.parallel.hang_timeout_s,
        parent_pid=assignment.parent_pid,
        on_end=give_last_words,
    )
    watchdog.start()
    code = ExitCode.DONE
    try:
        recorder.write(start_record(assignment.identity, start=assignment.start))
        recorder.reserve_room()
        _run(assignment, recorder, watchdog)
    except BaseException as error:  # noqa: BLE001  # every end of a rank is a record, SystemExit too
        watchdog.yield_to_signal()
        failure = _attributed(failure_from(error, rank=rank, heartbeat=heartbeat), watchdog)
        unfit = failure.cause in ("environment", "disk_full")
        code = ExitCode.UNFIT_ENVIRONMENT if unfit else ExitCode.FAILED
        with suppress(OSError):  # no space is left even for this, so only the exit code remains
            recorder.write_last_words(failure)
            sys.stderr.write(failure.traceback or f"{failure.message}\n")
        assignment.on_failure(recorder.path)
    end_process(recorder, code)


def _attributed(failure: Failure, watchdog: Watchdog) -> Failure:
    """Attribute an error to the launcher's or agent's exit, if any: stores and peers disappear too."""
    gone = watchdog.parent_gone()
    if gone is None:
        return failure
    cause, what = gone
    return replace(
        failure,
        cause=cause,
        message=f"{what}; then {failure.message}",
        next_step="Finish the run with --resume",
    )


def _run(assignment: Assignment, recorder: Recorder, watchdog: Watchdog) -> None:
    # Must come before torch is imported, since torch's OpenMP reads the variable once; torchrun would leave
    # it at 1.
    work = assignment.case.work
    assignment, held = _on_its_device(assignment, recorder)
    if not isinstance(work, CommandWork):
        os.environ["OMP_NUM_THREADS"] = str(effective_threads(work.parallel, assignment.identity))
    if _must_repeat(work):
        set_deterministic_environment(os.environ)
    prepared = None
    match work:
        case CommandWork():
            _run_command(work, assignment, recorder, watchdog, held)
        case ServingWork():
            prepared = _run_serving(work, assignment, recorder)
        case CollectiveWork():
            _run_collectives(work, assignment, recorder)
        case ProbeWork():
            _run_probe(work, assignment, recorder)
        case TrainingWork() if work.training.framework == "tensorflow":
            from gpuproof.worker.tensorflow.session import run_tensorflow_case

            run_tensorflow_case(assignment.case, work, identity=assignment.identity, recorder=recorder)
        case _:
            prepared = _run_steps(assignment, recorder)
    watchdog.rest()
    if prepared is not None:
        from gpuproof.worker.step.preparation import release

        release(prepared)
    assignment.on_done(recorder.path)


def _on_its_device(assignment: Assignment, recorder: Recorder) -> tuple[Assignment, HeldDevice | None]:
    """Claim the device for a case that shares its host with other cases of its run."""
    case = assignment.case
    share = case.placement.share
    if share is None or case.placement.device == "cpu":
        return assignment, None
    from gpuproof.worker.host.device_share import FOLDER, DeviceTaker

    recorder.begin("wait")
    taker = DeviceTaker(
        placement=case.placement,
        share=share,
        rank=recorder.rank,
        folder=assignment.run_folder / FOLDER,
        needs_exclusive_memory=isinstance(case.work, CommandWork),
    )
    held = taker.take(os.environ, recorder.heartbeat.beat)
    if held is None:
        return assignment, None
    recorder.write(held.taken)
    index = held.taken.framework_index
    devices = None if index is None else (index,)
    return replace(assignment, case=replace(case, placement=replace(case.placement, devices=devices))), held


def _run_command(
    work: CommandWork,
    assignment: Assignment,
    recorder: Recorder,
    watchdog: Watchdog,
    held: HeldDevice | None,
) -> None:
    """Run a user's command without importing torch; none of its processes outlives this one."""
    from gpuproof.processes.group import descendants, kill_tree
    from gpuproof.worker.command import run_command_case

    watchdog.end_others = lambda: kill_tree(lambda: [state.pid for state in descendants(os.getpid())])
    run_command_case(
        work.command,
        recorder=recorder,
        folder=assignment.folder,
        device_variables={} if held is None else held.variables,
    )


def _run_steps(assignment: Assignment, recorder: Recorder) -> Prepared:
    import_torch(optimizes=isinstance(assignment.case.work, TrainingWork))
    from gpuproof.worker.rank.session import run_case

    return run_case(
        assignment.case,
        identity=assignment.identity,
        recorder=recorder,
        run_folder=assignment.run_folder,
        store=assignment.store,
    )


def _run_serving(work: ServingWork, assignment: Assignment, recorder: Recorder) -> Prepared | None:
    """Serve requests; torch is imported to serve a model, but not to load-test an endpoint."""
    if work.serving.target == "model":
        import_torch()
    from gpuproof.worker.serving.session import run_serving_case

    return run_serving_case(
        assignment.case,
        work,
        identity=assignment.identity,
        recorder=recorder,
        run_folder=assignment.run_folder,
    )


def _run_collectives(work: CollectiveWork, assignment: Assignment, recorder: Recorder) -> None:
    import_torch()
    from gpuproof.worker.collectives.session import run_collective_case

    run_collective_case(
        assignment.case, work, identity=assignment.identity, recorder=recorder, store=assignment.store
    )


def _run_probe(work: ProbeWork, assignment: Assignment, recorder: Recorder) -> None:
    import_torch()
    from gpuproof.worker.probes.session import run_probe_case

    run_probe_case(
        assignment.case, work, identity=assignment.identity, recorder=recorder, store=assignment.store
    )


def _must_repeat(work: Work) -> bool:
    """Return whether the same computation must produce identical bits."""
    if isinstance(work, ProbeWork):
        return work.probe.name == "fingerprint"
    return isinstance(work, ModelWork) and work.training.deterministic


def import_torch(*, optimizes: bool = False) -> None:
    """Import torch with the garbage collector off, since importing creates no garbage.

    If `optimizes`, also import what the first optimizer would import.

    Raises:
        EnvironmentUnfitError: it cannot be imported.
    """
    gc.disable()
    try:
        import torch  # noqa: F401

        if optimizes:
            import_module(OF_OPTIMIZERS)
            for cache in Path(tempfile.gettempdir()).glob("torchinductor_*"):
                with suppress(OSError):  # the folder is not empty, or belongs to another user
                    cache.rmdir()  # the import created this folder; compiling would create it again
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"PyTorch cannot be imported by {sys.executable}: {error}",
            next_step="Install it there (pip install torch), or use another Python",
        ) from error
    finally:
        gc.freeze()
        gc.enable()


def end_process(recorder: Recorder, code: ExitCode) -> NoReturn:
    """Flush everything and exit immediately: destructors in communication libraries crash at exit."""
    try:
        recorder.close()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def start_record(identity: RankIdentity, *, start: StartMode = "exec") -> Start:
    """Describe this process as a rank that is starting now."""
    return Start(
        rank=identity.rank,
        world_size=identity.world_size,
        local_rank=identity.local_rank,
        local_world_size=identity.local_world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        start=start,
        gpuproof_version=__version__,
        unix_s=time.time(),
        monotonic_s=monotonic(),
    )


def redirect_output(path: Path) -> None:
    """Append the output of this process and its children to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
