"""`gpuproof monitor record` and `exec`: record this machine, optionally while a command runs.

A process on the node takes the readings; this module turns them into the readings file, summary, plot and
comparison. Standard output belongs to the command: everything printed by this module goes to standard error.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError, UsageError
from gpuproof.base.files import try_place
from gpuproof.cli.monitor.builtin import defaults_file, is_builtin, training_command
from gpuproof.cli.monitor.view import newest
from gpuproof.cli.options import say
from gpuproof.launchers.numbers import FiniteRange

if TYPE_CHECKING:
    from gpuproof.observe.derived import OutputFormat

RECORD_MODULE = "gpuproof.worker.commands.record"
_COMMAND_SETTINGS = {"ignore_unknown_options": False, "allow_interspersed_args": False}
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_SECONDS = FiniteRange(min=0.01)
_INTERVAL = click.option("--interval", metavar="SECONDS", type=_SECONDS, help="Time between readings (0.2).")
_DEVICES = click.option("--devices", metavar="0,2", help="Physical indices to read, e.g. 0,2 (default: all).")
_KEEP_COMMAND = click.option("--keep-command", is_flag=True, help="Store the command line in the recording.")


class _FilesAfterAnOption(click.Command):
    """A command with a --compare-with option that accepts all files from an expanded shell pattern."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option for each of several files, so that none is mistaken for the command."""
        return super().parse_args(ctx, one_option_a_file(args, option="--compare-with"))


def one_option_a_file(args: Sequence[str], *, option: str) -> list[str]:
    """Repeat `option` before each file after it: up to `--`, or while names look like recordings.

    >>> one_option_a_file(["--a", "x", "--with", "1.json", "2.json", "--", "ls", "3.json"], option="--with")
    ['--a', 'x', '--with', '1.json', '--with', '2.json', '--', 'ls', '3.json']
    >>> one_option_a_file(["--with", "1.json", "2.json", "python", "train.py"], option="--with")
    ['--with', '1.json', '--with', '2.json', 'python', 'train.py']
    """
    from gpuproof.readings.selection import RECORDING_SUFFIXES

    words, end = list(args), args.index("--") if "--" in args else None
    if option not in words[:end]:
        return words
    first = words.index(option) + 2
    last = first
    while last < (len(words) if end is None else end) and not words[last].startswith("-"):
        if end is None and not words[last].endswith(RECORDING_SUFFIXES):
            break
        last += 1
    repeated = [part for file in words[first:last] for part in (option, file)]
    return [*words[:first], *repeated, *words[last:]]


@click.command("record", context_settings=_COMMAND_SETTINGS)
@click.option("--out", type=click.Path(path_type=Path), help="New file to write to.")
@_INTERVAL
@click.option(
    "--slow-interval",
    metavar="SECONDS",
    type=_SECONDS,
    help="Seconds between readings of costly metrics [default: 1].",
)
@click.option(
    "--duration",
    metavar="SECONDS",
    type=_SECONDS,
    help="Stop after this many seconds [default: at Ctrl-C].",
)
@_DEVICES
@_KEEP_COMMAND
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def record(
    ctx: click.Context,
    *,
    out: Path | None,
    interval: float | None,
    slow_interval: float | None,
    duration: float | None,
    devices: str | None,
    keep_command: bool,
    command: tuple[str, ...],
) -> None:
    """Record this machine as JSON Lines until Ctrl-C, or until COMMAND exits.

    \b
    Example:
      gpuproof monitor record --interval 1 --out night.jsonl
    """  # noqa: D301  # click reads the backspace character
    if command and duration is not None:
        raise UsageError("is for a recording without a command", place="--duration")
    if out is not None and str(out).startswith("-"):
        raise UsageError(
            f"{out} is an option, not a file",
            place="--out",
            next_step="Specify the file: gpuproof monitor record --out FILE",
        )
    path = out or Path(f"gpu_stats_{name_config(command) or 'machine'}_{_stamp()}.jsonl")
    if path.exists():
        raise UsageError("the file exists", place=str(path), next_step="Name another file, or remove it")
    try_place("--out", path)
    arguments = _options(interval=interval, slow_interval=slow_interval, devices=devices, duration=duration)
    status = _record(path, arguments, command=command, keep_command=keep_command)
    if path.exists() and path.stat().st_size > 0:
        click.echo(f"gpuproof: readings are in {path}", err=True)
    ctx.exit(status)


@click.command("exec", cls=_FilesAfterAnOption, context_settings=_COMMAND_SETTINGS)
@click.option("--config-name", metavar="NAME", help="Configuration name in file names (from the command).")
@click.option(
    "--model",
    metavar="NAME",
    help="Name of the model, stored with the readings; for the built-in training: the model to train.",
)
@click.option("--config", type=_FILE, help="Kconfig file (.config) with defaults of the built-in training.")
@click.option(
    "--config-dir",
    type=_FOLDER,
    help="Folder containing defaults files: CONFIG_NAME, CONFIG_NAME.config, .config.",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("results"),
    show_default=True,
    help="Directory to write to; created if needed.",
)
@click.option("--generate-graphs", is_flag=True, help="Also plot the readings (_plot.png).")
@click.option(
    "--compare-with",
    metavar="GLOB",
    multiple=True,
    help="Compare with the newest matching file; everything up to -- is a file, quoted or not.",
)
@_INTERVAL
@_DEVICES
@click.option(
    "--format",
    "format_",
    type=click.Choice(["native", "gputop", "adamwprune"]),
    default="native",
    show_default=True,
    help="Format of the .json file; adamwprune: native, with the phase `training`.",
)
@_KEEP_COMMAND
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def exec_command(ctx: click.Context, /, **options: Any) -> None:
    """Run COMMAND and record the GPUs and the host while it runs.

    If the arguments after -- start with an option, they are for the training built into gpuproof: lenet5,
    resnet18, resnet50 or gpt2, with --optimizer, --pruning-method, --target-sparsity, --epochs, --batch-size,
    --lr, --seed or any recipe key (docs/guides/pruning.md).

    The command keeps its own exit code, signals and terminal. It can report its progress with
    gpuproof.monitor.marks.publish(phase="train", epoch=1), or by writing a line of JSON to the descriptor
    $GPUPROOF_MARKS_FD or the pipe $GPUPROOF_MARKS_PIPE.

    \b
    Example:
      gpuproof monitor exec --model lenet5 -- --optimizer adamw --pruning-method magnitude
      gpuproof monitor exec --config-name adamw --generate-graphs -- python train.py --lr 0.1
      gpuproof monitor exec --config-name sgd --compare-with 'results/gpu_stats_adamw_*' -- python train.py
    """  # noqa: D301  # click reads the backspace character
    ctx.exit(_exec(**options))


def _exec(
    *,
    config_name: str | None,
    model: str | None,
    config: Path | None,
    config_dir: Path | None,
    output_dir: Path,
    generate_graphs: bool,
    compare_with: tuple[str, ...],
    interval: float | None,
    devices: str | None,
    format_: OutputFormat,
    keep_command: bool,
    command: tuple[str, ...],
) -> int:
    other = newest(*compare_with) if compare_with else None
    name = config_name or model
    if is_builtin(command):
        defaults = defaults_file(config=config, config_dir=config_dir, name=config_name)
        command, model = training_command(
            command, model=model, defaults=defaults, save_dir=output_dir, name=name
        )
    else:
        _refuse_defaults(config, config_dir)
    named = _safe(config_name or model or name_config(command) or "command")
    is_new = not output_dir.exists()
    recording = _new_recording(output_dir, named)
    arguments = _options(interval=interval, slow_interval=None, devices=devices, duration=None)
    status = _record(recording, arguments, command=command, keep_command=keep_command)
    if not _has_readings(recording, in_new_folder=is_new):
        return status
    metadata = {"config": named} | ({"model": model} if model else {})
    try:
        _derive(recording, metadata=metadata, format_=format_, plot=generate_graphs, compare_with=other)
    except GpuproofError as error:
        click.echo(f"gpuproof: {error}", err=True)
    return status


def _has_readings(recording: Path, *, in_new_folder: bool) -> bool:
    """Return whether there are readings; if there is no sampler, it has already reported the reason."""
    if not recording.is_file():
        click.echo(f"gpuproof: {recording} was removed while the command ran: no readings are left", err=True)
        return False
    if recording.stat().st_size > 0:
        return True
    recording.unlink()
    if in_new_folder and not any(recording.parent.iterdir()):
        recording.parent.rmdir()
    return False


def _refuse_defaults(config: Path | None, config_dir: Path | None) -> None:
    if config is not None or config_dir is not None:
        raise UsageError(
            "is for the built-in training, but you gave your own command",
            place="--config" if config is not None else "--config-dir",
            next_step="Remove it, or write only options after --",
        )


def name_config(command: Sequence[str]) -> str | None:
    """Return a configuration name: the script that a command runs or, without one, its program.

    >>> name_config(["python", "-u", "src/train net.py", "--lr", "0.1"]), name_config(["/bin/sleep", "1"])
    ('train_net', 'sleep')
    """
    scripts = (part for part in command if re.search(r"\.(py|sh)$", part))
    name = next(scripts, command[0] if command else None)
    return None if name is None else _safe(Path(name).stem)


def _safe(name: str) -> str:
    """Return a name that is valid as part of a file name on every system."""
    return re.sub(r"[^A-Za-z0-9.+=-]+", "_", name).strip("._")[:100] or "command"


def _stamp() -> str:
    return time.strftime("%Y%m%d_%H%M%S")


def _options(
    *, interval: float | None, slow_interval: float | None, devices: str | None, duration: float | None
) -> list[str]:
    values = {
        "--interval": interval,
        "--slow-interval": slow_interval,
        "--devices": devices,
        "--duration": duration,
    }
    return [f"{name}={value}" for name, value in values.items() if value is not None]


def _record(path: Path, arguments: list[str], *, command: Sequence[str], keep_command: bool) -> int:
    from gpuproof.processes.foreground import run_in_foreground
    from gpuproof.processes.start import exit_status, our_command

    flags = ["--quiet", *(["--keep-command"] if keep_command else [])]
    end = ["--", *command] if command else []
    returncode = run_in_foreground([*our_command(RECORD_MODULE), f"--out={path}", *arguments, *flags, *end])
    return exit_status(returncode)


def _new_recording(folder: Path, config: str) -> Path:
    """Reserve a file name that no other run uses, even one started in the same second.

    Raises:
        EnvironmentUnfitError: the directory cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            path = folder / f"gpu_stats_{config}_{_stamp()}.jsonl"
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                time.sleep(0.2)
            else:
                return path
    except OSError as error:
        raise EnvironmentUnfitError(
            error.strerror or str(error), place=str(folder), next_step="Specify another with --output-dir"
        ) from error


def _derive(
    path: Path, *, metadata: dict[str, str], format_: OutputFormat, plot: bool, compare_with: Path | None
) -> None:
    from gpuproof.observe.derived import Wanted, write_derived
    from gpuproof.observe.recording_page import recording_page, recording_result, values_line
    from gpuproof.readings.recording import load_recording
    from gpuproof.readings.summary import summarise

    wanted = Wanted(
        stem=path.with_suffix(""), format=format_, metadata=metadata, plot=plot, compare_with=compare_with
    )
    recording = load_recording(path)
    derived = write_derived(recording, wanted)
    sys.stdout.flush()
    if derived.comparison is not None:
        say(derived.comparison, err=True)
    for failure in derived.failures:
        say(f"gpuproof: {failure}", err=True)
    say(f"gpuproof: wrote {', '.join(map(str, (path, *derived.written)))}", err=True)
    say(f"gpuproof: {values_line(summarise(recording))}", err=True)
    verdict = recording_page(recording_result(recording)).verdict
    if verdict is not None and verdict.tone != "plain":
        say(f"gpuproof: {verdict.reason}", err=True)
