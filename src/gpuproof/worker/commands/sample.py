"""`python -m gpuproof.worker sample`: record this machine until asked to stop.

In: options. Out: JSON Lines in a file or on standard output, and an exit code from `gpuproof.base.errors`.
Ctrl-C and SIGTERM are the normal ways to stop it: the last line of the recording is written, and the code is
0.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence

from gpuproof.base.errors import ExitCode, GpuproofError, UsageError
from gpuproof.devices.discovery import open_devices
from gpuproof.monitor.host import HostReader
from gpuproof.monitor.kernel_log import KernelLog
from gpuproof.monitor.listener import SystemListener
from gpuproof.monitor.ports import PortReader
from gpuproof.monitor.process_owners import FACTS, describer
from gpuproof.monitor.recorder import STANDARD_OUTPUT, RecordSink, open_recorder
from gpuproof.monitor.sampler import Clock, Sampler, SamplingPlan

SHORTEST_INTERVAL_S = 0.01
OPEN_PATIENCE_S = 0.3
"""How long the recording waits for drivers; devices of slower drivers are added when they respond."""
READY_AFTER_S = 0.4
"""Maximum time a caller waits for the recording to start, even if drivers hang."""


def main(argv: Sequence[str]) -> int:
    """Run the sampler; return the exit code."""
    options = _parser().parse_args(argv)
    try:
        return _record(options)
    except GpuproofError as error:
        print(f"gpuproof: {error}", file=sys.stderr)  # noqa: T201  # this process's own standard error
        return int(error.exit_code)


def add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add the reading options that `sample` and `record` share."""
    parser.add_argument("--interval", type=seconds, metavar="S", help="seconds between readings (0.2)")
    parser.add_argument(
        "--slow-interval",
        type=seconds,
        metavar="S",
        help="seconds between readings of the expensive metrics (1)",
    )
    parser.add_argument(
        "--host-interval",
        type=seconds,
        metavar="S",
        help="seconds between readings of the host (same as slow)",
    )
    parser.add_argument("--devices", metavar="LIST", help="physical indices to read, e.g. 0,2 (all)")


def seconds(text: str) -> float:
    """Parse an interval or a duration.

    Raises:
        argparse.ArgumentTypeError: it is not a number of seconds, or is too short.
    """
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not SHORTEST_INTERVAL_S <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} s is too short: use {SHORTEST_INTERVAL_S:g} s or more")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuproof.worker sample",
        description="Record GPUs and host as JSON Lines to standard output until stopped.",
        epilog="Example: ssh NODE python3 gpuproof-node.pyz sample | gpuproof monitor live -",
    )
    add_reading_options(parser)
    parser.add_argument("--duration", type=seconds, metavar="S", help="stop after this many seconds")
    parser.add_argument(
        "--out", default=STANDARD_OUTPUT, metavar="FILE", help="a new file; - means standard output"
    )
    parser.add_argument(
        "--processes",
        choices=FACTS,
        default=FACTS[0],
        help="for processes on a GPU: ids and memory (ids); also pod, container and Slurm job "
        "(owners); also user, command, CPU time and memory (details)",
    )
    parser.add_argument("--marks-fd", type=int, metavar="N", help="file descriptor to read marks from")
    parser.add_argument("--control-fd", type=int, metavar="N", help=argparse.SUPPRESS)
    parser.add_argument("--parent-pid", type=int, metavar="PID", help="stop when this parent process exits")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help="command line to store; comes last")
    return parser


def _record(options: argparse.Namespace) -> int:
    listener = SystemListener(
        marks_fd=options.marks_fd, control_fd=options.control_fd, parent_pid=options.parent_pid
    )
    in_time = threading.Timer(READY_AFTER_S, listener.ready)
    in_time.daemon = True
    if options.devices is None:
        in_time.start()
    devices = open_devices(os.environ, open_deadline_s=OPEN_PATIENCE_S)
    try:
        if options.devices is not None:
            devices.select(_indices(options.devices, num_devices=len(devices.identities)))
            in_time.start()  # not earlier: ready means that options were accepted and drivers had time
        recorder = open_recorder(options.out, stdout=sys.stdout.buffer)
        sampler = Sampler(
            devices,
            host=HostReader(),
            recorder=recorder,
            listener=listener,
            plan=_plan(options),
            clock=Clock(),
            describe=describer(options.processes),
            ports=PortReader().read,
            kernel_log=KernelLog(),
        )
        return _run(sampler, recorder, out=options.out)
    finally:
        in_time.cancel()
        devices.close()


def _run(sampler: Sampler, recorder: RecordSink, *, out: str) -> int:
    try:
        sampler.run()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"gpuproof: {out}: cannot continue recording ({error.strerror}).", file=sys.stderr)  # noqa: T201
        return int(ExitCode.UNFIT_ENVIRONMENT)
    finally:
        recorder.close()
    return int(ExitCode.DONE)


def _plan(options: argparse.Namespace) -> SamplingPlan:
    default = SamplingPlan()
    interval_s = options.interval or default.interval_s
    return SamplingPlan(
        interval_s=interval_s,
        slow_interval_s=max(interval_s, options.slow_interval or default.slow_interval_s),
        duration_s=options.duration,
        command=tuple(options.command) if options.command else None,
        host_interval_s=None if options.host_interval is None else max(interval_s, options.host_interval),
        dither_seed=int.from_bytes(os.urandom(4), "little"),
    )


def _indices(text: str, *, num_devices: int) -> set[int]:
    try:
        chosen = {int(part) for part in text.split(",")}
    except ValueError:
        raise UsageError(
            "not a list of device indices", place=f"--devices {text}", next_step="List them as 0,2"
        ) from None
    if not chosen <= set(range(num_devices)):
        raise UsageError(
            f"this host has {num_devices} GPU(s)", place=f"--devices {text}", next_step="Indices start at 0"
        )
    return chosen
