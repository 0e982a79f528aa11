"""`python -m gpuproof.worker run SPEC OUT`: one rank of one case, from its first record to its exit.

Writes FOLDER/rank-N.jsonl and, as standard output and error of the rank, FOLDER/stderr-N.txt. Whatever
ends the rank is a record. The exit is immediate once all is flushed: judge a worker by its records.
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
"""The first optimizer of a process imports it, compiled or not: half as much again as torch itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What this rank does and where it writes."""

    case: Case
    identity: RankIdentity
    folder: Path
    run_folder: Path
    parent_pid: int | None
    store: Store | None = None
    """The store at which the ranks of a launcher not ours have met already."""
    on_done: Callable[[Path], None] = lambda _journal: None
    """Called with the finished journal, after the process group is left."""
    on_failure: Callable[[Path], None] = lambda _journal: None
    """Called with the journal after the failure record of a rank. Must end by itself, and soon."""
    start: StartMode = "exec"
    """How this process came to be: by itself, or forked with torch imported (`serve_cases`)."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the rank that a launcher asks for: `python -m gpuproof.worker run SPEC OUT`."""
    parser = argparse.ArgumentParser(
        prog="gpuproof.worker run", description="one rank of a case, as a launcher asks for it"
    )
    parser.add_argument("spec", type=Path, metavar="SPEC", help="the case, as JSON")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder for this replicate's files")
    parser.add_argument("--parent-pid", type=int, help="end when this process of the same host is gone")
    parser.add_argument(
        "--attached",
        type=int,
        metavar="N",
        help="give the case to the other ranks of a launcher not ours, as the Nth launch from 0",
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
    """Run the rank to its end and exit: 0 when its last record is a result."""
    rank = assignment.identity.rank
    if assignment.parent_pid is not None and not process_lives(assignment.parent_pid):
        # The launcher died while this process started: the folder may be another attempt's by now.
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
        with suppress(OSError):  # not even room for this: the exit code is the last word
            recorder.write_last_words(failure)
            sys.stderr.write(failure.traceback or f"{failure.message}\n")
        assignment.on_failure(recorder.path)
    end_process(recorder, code)


def _attributed(failure: Failure, watchdog: Watchdog) -> Failure:
    """Say of an error that came after launcher or agent were gone that they were: stores and peers go too."""
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
    # Before torch is imported, since its OpenMP reads it once; torchrun would leave 1.
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
    """Take the device of a case that shares its host with others of its run."""
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
    """Run a command of the user's; torch is not imported, and none of it outlives this process."""
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
    """Serve requests: torch is imported where a model is served, and not to load an endpoint."""
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
    """Say whether the same work must give the same bits."""
    if isinstance(work, ProbeWork):
        return work.probe.name == "fingerprint"
    return isinstance(work, ModelWork) and work.training.deterministic


def import_torch(*, optimizes: bool = False) -> None:
    """Import torch, the garbage collector being off: none of what is made meanwhile is garbage.

    `optimizes` imports what the first optimizer would, too.

    Raises:
        EnvironmentUnfitError: it cannot be imported.
    """
    gc.disable()
    try:
        import torch  # noqa: F401

        if optimizes:
            import_module(OF_OPTIMIZERS)
            for cache in Path(tempfile.gettempdir()).glob("torchinductor_*"):
                with suppress(OSError):  # it holds something, or is another's
                    cache.rmdir()  # importing made it; compiling would make it again
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"PyTorch cannot be imported by {sys.executable}: {error}",
            next_step="Install it there (pip install torch), or name another Python",
        ) from error
    finally:
        gc.freeze()
        gc.enable()


def end_process(recorder: Recorder, code: ExitCode) -> NoReturn:
    """Flush everything and leave at once: destructors of communication libraries crash at exit."""
    try:
        recorder.close()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def start_record(identity: RankIdentity, *, start: StartMode = "exec") -> Start:
    """Describe this process as a rank that begins now."""
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
    """Send what this process prints, and what it starts, to the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
