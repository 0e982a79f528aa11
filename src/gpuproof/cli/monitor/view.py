"""`gpuproof monitor show | compare | plot`: look at readings, during a recording or afterwards."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.base.redaction import typed_command
from gpuproof.cli.options import say, verbose_option
from gpuproof.cli.report import chosen_format, report_options, write_report
from gpuproof.launchers.numbers import FiniteRange

if TYPE_CHECKING:
    from gpuproof.observe.stream import ProcessFacts, Records
    from gpuproof.readings.recording import RecordingData
    from gpuproof.records.page import Picture

interval_option = click.option(
    "--interval",
    metavar="SECONDS",
    type=FiniteRange(min=0.05),
    default=1.0,
    show_default=True,
    help="Seconds between readings.",
)
FORMATS = (
    "terminal, markdown, html, json or csv; by default inferred from the name given to "
    "--output, else terminal."
)


def require(package: str, command: str) -> None:
    """Reject a command if its library is not installed.

    Raises:
        EnvironmentUnfitError: the library is missing; the message says how to install it.
    """
    if find_spec(package) is None:
        raise EnvironmentUnfitError(
            f"needs the Python package {package}, which is not installed",
            place=f"monitor {command}",
            next_step="Install it with: pip install 'gpuproof[monitor]'",
        )


def records_of(
    source: str | None,
    *,
    interval: float,
    devices: str | None,
    processes: ProcessFacts,
    pipe: int | None = None,
) -> Records:
    """Provide the records from a newly started sampler, from standard input (-) or from a recording.

    Raises:
        UsageError: the recording does not exist, or `--devices` is used with one.
    """
    from gpuproof.observe import stream

    if source is None:
        return stream.sampled(
            stream.sampler_command(interval_s=interval, devices=devices, processes=processes)
        )
    if devices is not None:
        raise UsageError("is for a sampler started here, not for a recording", place="--devices")
    return stream.piped(pipe) if source == "-" else stream.followed(_existing(source))


def _existing(source: str) -> Path:
    if not Path(source).is_file():
        raise UsageError(
            "no such recording",
            place=source,
            next_step="Omit it to start a sampler, or give - for a pipe",
        )
    return Path(source)


@click.command("show")
@click.option("--balance", is_flag=True, help="Check how evenly the load is spread over the GPUs.")
@report_options(formats=FORMATS)
@verbose_option
@click.argument("recording")
def show(*, balance: bool, form: str | None, output: Path | None, as_json: bool, recording: str) -> None:
    """Print a summary of RECORDING: a file in any known format, or a pattern (newest match).

    A directory means the newest recording in it.

    \b
    Example:
      gpuproof monitor show results
      gpuproof monitor show --balance 'results/gpu_stats_adamw_*'
      gpuproof monitor show --format csv results
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.observe.recording_page import recording_page, recording_result
    from gpuproof.observe.side_by_side import balance_picture
    from gpuproof.observe.timeline import recording_picture
    from gpuproof.readings.selection import of_recording
    from gpuproof.report.page_parts import with_pictures

    chosen = chosen_format(form, output, as_json=as_json)
    readings = _load(recording)
    result = recording_result(readings, with_balance=balance)
    page = recording_page(result, of_recording(readings))
    if chosen == "html":
        pictures = [replace(recording_picture(readings), title="Over time")]
        pictures += [balance_picture(readings)] if balance else []
        page = with_pictures(page, pictures)
    write_report(result, page, chosen, output)


@click.command("compare")
@click.option(
    "--phase",
    metavar="NAME",
    help="Compare only this named phase; without it, the time when GPUs were busy.",
)
@click.option(
    "--busy",
    metavar="PERCENT",
    type=FiniteRange(0, 100),
    default=10.0,
    show_default=True,
    help="Utilisation in % at or above which a GPU counts as busy.",
)
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="Also plot both to this file.")
@report_options(formats=FORMATS)
@verbose_option
@click.argument("recordings", nargs=-1, required=True, metavar="A B")
def compare(
    *,
    phase: str | None,
    busy: float,
    picture: Path | None,
    form: str | None,
    output: Path | None,
    as_json: bool,
    recordings: tuple[str, ...],
) -> None:
    """Compare recording B with A: first whether they are comparable, then how much they differ.

    A and B are files in any known format, or quoted patterns (the newest match is used).

    \b
    Example:
      gpuproof monitor compare --phase train 'results/gpu_stats_adamw_*' 'results/gpu_stats_sgd_*'
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.comparison.page import recordings_page, recordings_result
    from gpuproof.comparison.recordings import READ_METRICS
    from gpuproof.comparison.recordings import compare as compare_recordings
    from gpuproof.observe.side_by_side import comparison_picture, zoomable
    from gpuproof.readings.selection import of_recording, side_by_side
    from gpuproof.report.page_parts import with_pictures

    if len(recordings) != 2:
        raise UsageError(
            f"takes two recordings, A and B; {len(recordings)} given",
            place="monitor compare",
            next_step="Quote each pattern ('results/gpu_stats_a_*') so that the shell does not expand it",
        )
    chosen = chosen_format(form, output, as_json=as_json)
    first, second = (_load(x, None if picture or chosen == "html" else READ_METRICS) for x in recordings)
    comparison = compare_recordings(first, second, phase_name=phase, busy_percent=busy)
    drawn = comparison_picture(first, second, comparison)
    provenance = side_by_side(of_recording(first), of_recording(second), command=typed_command())
    page = recordings_page(comparison, provenance)
    page = with_pictures(page, zoomable(drawn), before=["Conditions"]) if chosen == "html" else page
    write_report(recordings_result(comparison), page, chosen, output)
    _write(drawn, picture)


@click.command("plot")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Image to write: .png, .svg or .pdf.")
@click.option(
    "--kind",
    type=click.Choice(["time", "memory", "balance"]),
    default="time",
    show_default=True,
    help="Plot one recording over time, the memory of several, or the load of one across its GPUs.",
)
@click.argument("recordings", nargs=-1, required=True)
def plot(
    *, output: Path | None, kind: Literal["time", "memory", "balance"], recordings: tuple[str, ...]
) -> None:
    """Plot RECORDINGS: files in any known format, or directories that are searched for gpu_stats_*.

    \b
    Example:
      gpuproof monitor plot results/gpu_stats_adamw_20261120_101500.jsonl
      gpuproof monitor plot --kind memory --output memory.png results
    """  # noqa: D301  # click reads the backspace character
    paths = [path for name in recordings for path in _recordings(name)]
    if kind == "memory":
        from gpuproof.observe.side_by_side import memory_picture

        _write(memory_picture([_load(str(path)) for path in paths]), output or _memory_path(recordings))
        return
    if output is not None and len(paths) > 1:
        raise UsageError(f"names one image for {len(paths)} recordings", place="--output")
    from gpuproof.observe.side_by_side import balance_picture
    from gpuproof.observe.timeline import recording_picture

    suffix, picture_of = ("plot", recording_picture) if kind == "time" else ("balance", balance_picture)
    for path in paths:
        _write(picture_of(_load(str(path))), output or path.with_name(f"{path.stem}_{suffix}.png"))


def _memory_path(names: tuple[str, ...]) -> Path:
    """Return where memory plots go: graphs/ in the only directory given, else the current one."""
    only = Path(names[0])
    return (only / "graphs" if len(names) == 1 and only.is_dir() else Path()) / "gpu_memory_timeline.png"


def _recordings(name: str) -> list[Path]:
    """Return a file or pattern as is; for a directory, return the recordings in it, each run once.

    Raises:
        UsageError: a directory contains no recording.
    """
    from gpuproof.readings.selection import recordings_in

    folder = Path(name)
    return recordings_in(folder) if folder.is_dir() else [Path(name)]


def _load(name: str, metrics: Collection[str] | None = None) -> RecordingData:
    """Load the newest match, and pass on any notes meant for the reader."""
    from gpuproof.readings.formats import load

    return load(newest(name), metrics=metrics)


def newest(*patterns: str) -> Path:
    """Return the newest match of the patterns, and report which one it was."""
    from gpuproof.readings.selection import newest_match

    selected = newest_match(*patterns)
    if selected.note is not None:
        say(f"gpuproof: {selected.note}", err=True)
    return selected.path


def _write(picture: Picture, path: Path | None) -> None:
    if path is None:
        return
    from gpuproof.report.pictures import write_picture

    write_picture(picture, path)
    click.echo(f"gpuproof: wrote {path}", err=True)
