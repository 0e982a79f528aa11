"""`gpuproof monitor live | show | compare | plot | serve`: look at readings, now or afterwards."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from gpuproof.errors import EnvironmentUnfitError, UsageError

if TYPE_CHECKING:
    from gpuproof.observe.stream import Records
    from gpuproof.readings.recording import RecordingData

_SECONDS = click.FloatRange(min=0.05)


@click.command("live")
@click.option("--interval", type=_SECONDS, default=1.0, show_default=True, help="Seconds between readings.")
@click.option("--devices", help="Physical indices to show, such as 0,2 (all).")
@click.argument("source", required=False)
def live(*, interval: float, devices: str | None, source: str | None) -> None:
    """Watch GPUs and host in the terminal; q quits, a digit shows one GPU large.

    SOURCE is a recording that is being written, which is followed, or - for records on standard input;
    without it a sampler is started.

    \b
    Example:
      gpuproof monitor live --interval 0.5
      ssh NODE python3 gpuproof-node.pyz sample | gpuproof monitor live -
    """  # noqa: D301  # click reads the backspace character
    _require("textual", "live")
    if not sys.stdout.isatty():
        raise UsageError(
            "draws on a terminal, which standard output is not here",
            place="monitor live",
            next_step="For readings in a file or pipe use `gpuproof monitor record`",
        )
    from gpuproof.observe.live import run_live

    run_live(_records(source, interval=interval, devices=devices))


def _require(package: str, command: str) -> None:
    if find_spec(package) is None:
        raise EnvironmentUnfitError(
            f"needs the Python package {package}, which is not installed",
            place=f"monitor {command}",
            next_step="Install it with: pip install 'gpuproof[monitor]'",
        )


def _records(source: str | None, *, interval: float, devices: str | None) -> Records:
    from gpuproof.observe import stream

    if source is None:
        return stream.sampled(stream.sampler_command(interval_s=interval, devices=devices))
    if devices is not None:
        raise UsageError("is for a sampler that is started here, not for a recording", place="--devices")
    return stream.piped() if source == "-" else stream.followed(_existing(source))


def _existing(source: str) -> Path:
    if not Path(source).is_file():
        raise UsageError(
            "no such recording",
            place=source,
            next_step="Leave it out to start a sampler, or give - for a pipe",
        )
    return Path(source)


@click.command("show")
@click.option("--balance", is_flag=True, help="Judge how evenly the load is spread over the GPUs.")
@click.argument("recording")
def show(*, balance: bool, recording: str) -> None:
    """Print the summary of RECORDING, a file of any known format or a pattern (newest match).

    A directory stands for the newest recording in it.

    \b
    Example:
      gpuproof monitor show results
      gpuproof monitor show --balance 'results/gpu_stats_adamw_*'
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.observe.text import render_balance, render_summary
    from gpuproof.readings.balance import load_balance
    from gpuproof.readings.summary import summarise

    summary = summarise(_load(recording))
    click.echo(render_summary(summary), nl=False)
    if balance:
        click.echo("\nLoad balance\n" + render_balance(load_balance(summary.whole)), nl=False)


@click.command("compare")
@click.option("--phase", help="Compare this named phase only; without it, the time in which GPUs were busy.")
@click.option(
    "--busy",
    type=click.FloatRange(0, 100),
    default=10.0,
    show_default=True,
    help="Utilisation in % from which a GPU counts as busy.",
)
@click.option("--plot", "picture", type=click.Path(path_type=Path), help="Draw both into this file too.")
@click.argument("recordings", nargs=-1, required=True, metavar="A B")
def compare(*, phase: str | None, busy: float, picture: Path | None, recordings: tuple[str, ...]) -> None:
    """Compare recording B with A: first whether they are comparable, then by how much they differ.

    A and B are files of any known format, or quoted patterns, of which the newest match is taken.

    \b
    Example:
      gpuproof monitor compare --phase train 'results/gpu_stats_adamw_*' 'results/gpu_stats_sgd_*'
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.observe.text import render_comparison
    from gpuproof.readings.compare import READ_METRICS
    from gpuproof.readings.compare import compare as compare_recordings

    if len(recordings) != 2:
        raise UsageError(
            f"takes two recordings, A and B; {len(recordings)} given",
            place="monitor compare",
            next_step="Quote each pattern ('results/gpu_stats_a_*'), so that the shell does not resolve it",
        )
    metrics = READ_METRICS if picture is None else None
    first, second = (_load(name, metrics) for name in recordings)
    comparison = compare_recordings(first, second, phase_name=phase, busy_percent=busy)
    click.echo(render_comparison(comparison), nl=False)
    if picture is not None:
        from gpuproof.observe.plots_compare import plot_comparison

        plot_comparison(first, second, comparison, picture)
        _wrote(picture)


@click.command("plot")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Picture to write: .png, .svg or .pdf.")
@click.option(
    "--kind",
    type=click.Choice(["time", "memory", "balance"]),
    default="time",
    show_default=True,
    help="The course of one recording; the memory of several; the load of one over its GPUs.",
)
@click.argument("recordings", nargs=-1, required=True)
def plot(
    *, output: Path | None, kind: Literal["time", "memory", "balance"], recordings: tuple[str, ...]
) -> None:
    """Draw RECORDINGS: files of any known format, or directories that are searched for gpu_stats_*.

    \b
    Example:
      gpuproof monitor plot results/gpu_stats_adamw_20261120_101500.jsonl
      gpuproof monitor plot --kind memory --output memory.png results
    """  # noqa: D301  # click reads the backspace character
    paths = [path for name in recordings for path in _found(name)]
    if kind == "memory":
        from gpuproof.observe.plots_compare import plot_memory

        target = output or _memory_picture(recordings)
        plot_memory([_load(str(path)) for path in paths], target)
        _wrote(target)
        return
    if output is not None and len(paths) > 1:
        raise UsageError(f"names one picture for {len(paths)} recordings", place="--output")
    for path in paths:
        _wrote(_plot_one(path, kind, output))


def _memory_picture(names: tuple[str, ...]) -> Path:
    """Return where the memory of recordings is drawn: of one directory in its graphs/, else here."""
    only = Path(names[0])
    return (only / "graphs" if len(names) == 1 and only.is_dir() else Path()) / "gpu_memory_timeline.png"


def _plot_one(path: Path, kind: Literal["time", "balance"], output: Path | None) -> Path:
    from gpuproof.observe.plots import plot_recording
    from gpuproof.observe.plots_compare import plot_balance
    from gpuproof.readings.summary import summarise

    recording = _load(str(path))
    suffix = "plot" if kind == "time" else "balance"
    target = output or path.with_name(f"{path.stem}_{suffix}.png")
    if kind == "time":
        plot_recording(recording, target)
    else:
        plot_balance(summarise(recording).whole, recording.source, target)
    return target


def _found(name: str) -> list[Path]:
    """Give a file or pattern as it is, and of a directory the recordings in it, each run once.

    Raises:
        UsageError: a directory holds no recording.
    """
    from gpuproof.readings.selection import recordings_in

    folder = Path(name)
    return recordings_in(folder) if folder.is_dir() else [Path(name)]


@click.command("serve")
@click.option("--address", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=9837, show_default=True, help="0: a free one.")
@click.option("--interval", type=_SECONDS, default=1.0, show_default=True, help="Seconds between readings.")
@click.option("--devices", help="Physical indices to serve, such as 0,2 (all).")
@click.argument("source", required=False)
def serve(*, address: str, port: int, interval: float, devices: str | None, source: str | None) -> None:
    """Serve readings to Prometheus at /metrics until Ctrl-C.

    On loopback by default: readings tell what a machine is used for. The Grafana dashboard is
    gpuproof/templates/grafana_dashboard.json. SOURCE is as for `live`.

    \b
    Example:
      gpuproof monitor serve --port 9837 & curl -s http://127.0.0.1:9837/metrics | grep power
    """  # noqa: D301  # click reads the backspace character
    _require("prometheus_client", "serve")
    from gpuproof.observe.exporter import serve as start

    running = start(_records(source, interval=interval, devices=devices), address=address, port=port)
    click.echo(f"gpuproof: serving {running.url}", err=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    while not stop.wait(0.5) and running.reader.is_alive():
        pass
    running.stop()
    if running.feed.failure is not None:
        raise running.feed.failure


def _load(name: str, metrics: Collection[str] | None = None) -> RecordingData:
    """Load the newest match, say which one it was, and pass on what its reader has to know."""
    from gpuproof.readings.formats import load
    from gpuproof.readings.selection import newest_match

    selected = newest_match(name)
    if selected.note is not None:
        click.echo(f"gpuproof: {selected.note}", err=True)
    return load(selected.path, metrics=metrics)


def _wrote(path: Path) -> None:
    click.echo(f"gpuproof: wrote {path}", err=True)
