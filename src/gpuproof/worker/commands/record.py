"""`python -m gpuproof.worker record [-- COMMAND]`: record a command, or this machine until Ctrl-C.

The input is options and an optional command. The output is a recording in a new file. The exit code is the
command's own, or 128 + n if signal n ended it. Without a command, it behaves like `sample` with an output
file.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpuproof.base.errors import GpuproofError
from gpuproof.monitor.watch import SamplerOptions, watch
from gpuproof.processes.start import exit_status
from gpuproof.worker.commands import sample


def main(argv: Sequence[str]) -> int:
    """Record; return the command's exit status."""
    options, command = parse(argv)
    config = Path(command[0]).stem if command else "machine"
    out = options.out or f"gpu_stats_{config}_{time.strftime('%Y%m%d_%H%M%S')}.jsonl"
    sampler_options = SamplerOptions(
        interval_s=options.interval,
        slow_interval_s=options.slow_interval,
        devices=options.devices,
        command=tuple(command) if options.keep_command and command else None,
    )
    if not command:
        duration = [] if options.duration is None else [f"--duration={options.duration}"]
        return sample.main([f"--out={out}", *duration, *sampler_options.arguments])
    try:
        watched = watch(command, out=Path(out), options=sampler_options, env=os.environ)
    except GpuproofError as error:
        _say(str(error))
        return int(error.exit_code)
    for message in (watched.not_started, watched.trouble):
        if message is not None:
            _say(message)
    if not options.quiet and Path(out).exists():
        _say(f"readings are in {out}")
    return exit_status(watched.returncode)


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split the arguments at the first `--` into our options and the command, which is unchanged."""
    split = list(argv).index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        prog="gpuproof.worker record",
        usage="%(prog)s [options] [-- COMMAND ...]",
        description="Record GPUs and host as JSON Lines, during a command or until Ctrl-C.",
        epilog="Example: python gpuproof-node.pyz record --interval 0.5 -- python train.py",
    )
    sample.add_reading_options(parser)
    parser.add_argument("--out", metavar="FILE", help="a new file (gpu_stats_<command>_<time>.jsonl)")
    parser.add_argument("--duration", type=sample.seconds, metavar="S", help="with no command: stop after S")
    parser.add_argument("--keep-command", action="store_true", help="store the command line in the recording")
    parser.add_argument("--quiet", action="store_true", help="do not print where the readings are")
    options = parser.parse_args(argv[:split])
    command = list(argv[split + 1 :])
    if command and options.duration is not None:
        parser.error("--duration requires a recording without a command")
    return options, command


def _say(message: str) -> None:
    """Write to standard error, unbuffered; a closed or full stream must not change the exit status."""
    with suppress(OSError):
        os.write(2, f"gpuproof: {message}\n".encode(errors="replace"))
