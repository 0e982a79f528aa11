"""`show` and `compare` in the node file: reads recordings on the node, prints Markdown.

`launchers/archive.py` packs this module next to the node side, which does not import it. It needs numpy. The
full set of commands for recordings is `gpuproof monitor`, which needs a library for its terminal pages that
is not installed on nodes.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError
from gpuproof.records.page import Page

COMMANDS = {
    "show": "print a recording's summary",
    "compare": "compare a recording with another",
}
LEAST_PYTHON = (3, 11)


def main(words: Sequence[str]) -> int:
    """Run the command given as the first argument; return its exit code."""
    args = _parser().parse_args(words)
    try:
        text = _text(args)
    except GpuproofError as error:
        sys.stderr.write(f"gpuproof: {error}\n")
        return error.exit_code
    sys.stdout.write(text)
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="gpuproof-node.pyz")
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help=COMMANDS["show"])
    show.add_argument("recording", type=Path)
    compare = commands.add_parser("compare", help=COMMANDS["compare"])
    compare.add_argument("first", type=Path, metavar="A")
    compare.add_argument("second", type=Path, metavar="B")
    compare.add_argument("--phase", help="compare only this named phase; otherwise the time GPUs were busy")
    return parser


def _text(args: Namespace) -> str:
    """Return the text that a command prints.

    Raises:
        EnvironmentUnfitError: Python is too old, or a library is missing.
        RecordError: a recording cannot be read.
    """
    if sys.version_info < LEAST_PYTHON:
        raise _unfit(args, f"needs Python {LEAST_PYTHON[0]}.{LEAST_PYTHON[1]} or newer")
    try:
        from gpuproof.report.markdown import markdown

        return markdown(_summary(args) if args.command == "show" else _comparison(args))
    except ModuleNotFoundError as error:
        raise _unfit(args, f"needs the Python package {error.name}, which is not installed") from error


def _unfit(args: Namespace, cause: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        cause,
        place=args.command,
        next_step=f"Use a Python with numpy, or, if gpuproof is installed: gpuproof monitor {args.command}",
    )


def _summary(args: Namespace) -> Page:
    from gpuproof.observe.recording_page import recording_page, recording_result
    from gpuproof.readings.recording import load_recording
    from gpuproof.readings.selection import of_recording

    recording = load_recording(args.recording)
    return recording_page(recording_result(recording), of_recording(recording))


def _comparison(args: Namespace) -> Page:
    from gpuproof.comparison.page import recordings_page
    from gpuproof.comparison.recordings import READ_METRICS, compare
    from gpuproof.readings.recording import load_recording
    from gpuproof.readings.selection import of_recording, side_by_side

    first, second = (load_recording(path, metrics=READ_METRICS) for path in (args.first, args.second))
    provenance = side_by_side(of_recording(first), of_recording(second))
    return recordings_page(compare(first, second, phase_name=args.phase), provenance)
