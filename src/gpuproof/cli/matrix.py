"""`gpuproof matrix`: run a command or workload for all combinations of fields, each monitored."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.base.files import copying_results, try_place
from gpuproof.cli.options import (
    ConfigCommand,
    RunName,
    dry_run_option,
    host_options,
    json_option,
    log_options,
)

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig
    from gpuproof.launchers.registry import HostChoice
    from gpuproof.records.collected import CaseRecords
    from gpuproof.store.run import RunDirectory

SUFFIXES = (".yaml", ".yml", ".json")
KCONFIG = ".config"
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(cls=ConfigCommand, context_settings={"ignore_unknown_options": True})
@click.argument("matrix", required=False, metavar="MATRIX")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, metavar="[--KEY.SUBKEY=VALUE]...")
@click.option(
    "--config",
    "config",
    metavar="FILE",
    help="Same as MATRIX, or a Kconfig .config that lists the cases.",
)
@click.option("--config-dir", type=_FOLDER, metavar="DIR", help="Run all matrix files in a folder in turn.")
@click.option("--output-dir", type=_FOLDER, metavar="DIR", help="Copy the result files to this folder.")
@dry_run_option
@click.option("--filter", "filters", multiple=True, metavar="AXIS=VALUE[,VALUE]", help="Run matching cases.")
@click.option("--filter-optimizer", metavar="NAME[,NAME]", help="Same as --filter optimizer=NAME.")
@click.option("--override", "changed", multiple=True, metavar="FIELD=VALUE", help="Set a fixed field.")
@click.option("--override-epochs", metavar="N", help="Set the epochs field, or a workload's training.epochs.")
@click.option("--parallel", metavar="N", help="Number of concurrent cases (cases.parallel).")
@click.option("--devices", metavar="0,2", help="GPUs to run cases on (distributed.devices).")
@click.option("--wait-for-memory", metavar="GIB", help="Start a case only on a GPU with this many GiB free.")
@click.option("--memory-wait-timeout", metavar="SECONDS", help="Maximum wait for memory [default: 300].")
@click.option("--stop-on-failure", is_flag=True, help="Do not start more cases after one has failed.")
@click.option("--keep-going", is_flag=True, help="Continue even if the first 3 cases fail the same way.")
@click.option("--timeout", metavar="SECONDS", help="Time limit per case; collected data is kept.")
@click.option(
    "--continue-dir", "--resume", "resume", type=RunName(), metavar="RUN", help="Finish an interrupted run."
)
@click.option("--retry-failed", is_flag=True, help="With --continue-dir: also rerun failed launches.")
@click.option("--rerun-dir", type=RunName(), metavar="RUN", help="Rerun a run's cases that match --filter.")
@click.option("--python", metavar="PATH", help="Run cases with this Python.")
@host_options
@json_option
@log_options
@click.pass_context
def matrix(ctx: click.Context, /, **options: Any) -> None:
    """Run every case of a matrix and compare results side by side.

    Each case is monitored separately. MATRIX is a recipe with a `matrix:` section that lists values for the
    {fields} of a command, or for the workload keys to sweep. Finished cases are kept: continue an interrupted
    matrix with --continue-dir.

    \b
    gpuproof matrix matrix.yaml --dry-run
    gpuproof matrix matrix.yaml --filter-optimizer adamw,sgd --override-epochs 1
    gpuproof matrix matrix.yaml --parallel 8 --wait-for-memory 18
    gpuproof matrix --continue-dir results/matrix/run_20261120T133012_4711
    gpuproof matrix --rerun-dir results/matrix/run_20261120T133012_4711 --filter optimizer=sgd
    """  # noqa: D301  # click reads the backspace character
    ctx.exit(_matrix(**options))


def _matrix(
    *,
    matrix: str | None,
    config: str | None,
    config_dir: Path | None,
    overrides: tuple[str, ...],
    resume: Path | None,
    rerun_dir: Path | None,
    output_dir: Path | None,
    **options: Any,
) -> ExitCode:
    if rerun_dir and resume:
        raise UsageError(
            "one run is either finished or rerun",
            place="--rerun-dir",
            next_step="Omit --continue-dir or --rerun-dir",
        )
    if options["retry_failed"] and not resume:
        raise UsageError("no run is resumed", place="--retry-failed", next_step="Add --continue-dir RUN")
    again = rerun_dir or resume
    if again is not None:
        if matrix or config or config_dir or overrides:
            raise UsageError(
                "a resumed run uses its own matrix",
                place=str(again),
                next_step="Omit the file and settings",
            )
        return _finish(again, is_rerun=rerun_dir is not None, output_dir=output_dir, **options)
    files = _files(matrix, config, config_dir)
    folders = [output_dir for _ in files]
    if output_dir is not None and config_dir is not None:
        folders = [output_dir / Path(kconfig or file).name.removesuffix(KCONFIG) for file, kconfig in files]
    for folder in folders:
        _try_folder(folder, dry_run=options["dry_run"])
    codes = []
    for (file, kconfig), folder in zip(files, folders, strict=True):
        words = [*_words_of_kconfig(kconfig), *overrides]
        codes.append(_begin(file, words, output_dir=folder, **options))
    return next((code for code in codes if code), ExitCode.DONE)


def _files(matrix: str | None, config: str | None, folder: Path | None) -> list[tuple[str, str | None]]:
    """Return the matrix files, each with the Kconfig file that lists its cases, if there is one."""
    others = [config] if config is not None else []
    if folder is not None:
        paths = sorted(str(path) for path in folder.glob("*") if path.name.endswith((KCONFIG, *SUFFIXES)))
        if not paths:
            kinds = ", ".join((KCONFIG, *SUFFIXES))
            raise UsageError(f"contains no matrix file ({kinds})", place=str(folder))
        others += paths
    of_kconfig = [name for name in others if name.endswith(KCONFIG)]
    whole: list[tuple[str, str | None]] = [(name, None) for name in others if name not in of_kconfig]
    if matrix is None and of_kconfig:
        cause = "lists cases, but not what to run with them"
        raise UsageError(cause, place=of_kconfig[0], next_step="Also pass a file with the command, as MATRIX")
    if matrix is not None and whole:
        raise click.UsageError("Specify one MATRIX file, or a folder of them with --config-dir")
    if matrix is None and not whole:
        raise click.UsageError("Missing MATRIX, a YAML file with a matrix and what to run")
    of_matrix = [] if matrix is None else [(matrix, kconfig) for kconfig in of_kconfig or (None,)]
    return [*whole, *of_matrix]


def _words_of_kconfig(path: str | None) -> list[str]:
    if path is None:
        return []
    from gpuproof.base.files import read_plain
    from gpuproof.config.kconfig import words_of

    try:
        return words_of(read_plain(Path(path)).decode(), source=path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read ({error})", place=path) from error


def _begin(
    file: str,
    overrides: Sequence[str],
    *,
    output_dir: Path | None,
    dry_run: bool,
    hosts: HostChoice,
    python: str | None,
    as_json: bool,
    retry_failed: bool,
    **options: Any,
) -> ExitCode:
    from gpuproof.cli.measuring import begin_run, show_plan

    del retry_failed
    words = ["--suite=matrix", "--run.experiment_name=matrix", *_words(file, **options), *overrides]
    if dry_run:
        return show_plan(file, words, hosts=hosts, python=python, writes=[output_dir], commands_of=_commands)
    run, code = begin_run(file, words, hosts=hosts, python=python, as_json=as_json, command="matrix")
    _copy(run, output_dir)
    return code


def _finish(
    path: Path,
    *,
    is_rerun: bool,
    output_dir: Path | None,
    dry_run: bool,
    hosts: HostChoice,
    python: str | None,
    as_json: bool,
    retry_failed: bool,
    filters: tuple[str, ...],
    filter_optimizer: str | None,
    **options: Any,
) -> ExitCode:
    """Finish a run, or rerun selected cases of it."""
    from gpuproof.cli.measuring import finish_run
    from gpuproof.store.run import RunDirectory

    if any(options.values()) or dry_run:
        raise UsageError("a resumed run keeps its settings", place=str(path), next_step="Omit its settings")
    chosen = _filters(filters, filter_optimizer)
    if chosen and not is_rerun:
        raise UsageError("selects cases of --rerun-dir", place="--filter", next_step="Add --rerun-dir RUN")
    _try_folder(output_dir, dry_run=False)
    run = _of_a_matrix(RunDirectory.open(path))
    code = finish_run(
        run,
        hosts=hosts,
        python=python,
        retry_failed=retry_failed,
        as_json=as_json,
        command="matrix",
        again=_launched_again(run, chosen) if is_rerun else None,
    )
    _copy(run, output_dir)
    return code


def _of_a_matrix(run: RunDirectory) -> RunDirectory:
    from gpuproof.store.names import read_suite

    if (started := read_suite(run).command) != "matrix":
        raise UsageError(
            "this is not a run of gpuproof matrix",
            place=str(run.root),
            next_step=f"Finish it with: gpuproof {started} --resume {run.root}",
        )
    return run


def _launched_again(run: RunDirectory, chosen: Sequence[str]) -> Callable[[CaseRecords], bool]:
    """Return a function that decides whether to rerun a launch.

    Raises:
        UsageError: no case of the run is selected.
    """
    from gpuproof.config.matrix import only_names_cases
    from gpuproof.store.names import read_config
    from gpuproof.suites.matrix.plan import plan

    config = read_config(run)
    only = replace(config.cases, only=(*config.cases.only, *chosen))
    chosen_config = config.model_copy(update={"cases": only})
    for refusal in only_names_cases(chosen_config):
        raise UsageError(refusal.cause, place="--filter", next_step=refusal.next_step)
    names = plan(chosen_config).cases
    return lambda records: records.case.case_id in names


def _words(
    file: str,
    *,
    filters: tuple[str, ...],
    filter_optimizer: str | None,
    changed: tuple[str, ...],
    override_epochs: str | None,
    parallel: str | None,
    devices: str | None,
    wait_for_memory: str | None,
    memory_wait_timeout: str | None,
    stop_on_failure: bool,
    keep_going: bool,
    timeout: str | None,
) -> list[str]:
    """Convert the options into arguments that set recipe keys."""
    import json

    from gpuproof.config.load import read_file_settings

    # Whether the file runs a command, as far as can be determined before it is checked.
    is_command = any(setting.path[0] == "command" for setting in read_file_settings(file))
    chosen = _filters(filters, filter_optimizer)
    settings = {
        "cases.only": json.dumps(chosen) if chosen else None,
        "cases.parallel": parallel,
        "distributed.devices": None if devices is None else f"[{devices}]",
        "cases.wait_for_memory": None if wait_for_memory is None else _bytes(wait_for_memory),
        "cases.memory_wait_timeout_s": memory_wait_timeout,
        "cases.stop_on_failure": "true" if stop_on_failure else None,
        "cases.keep_going": "true" if keep_going else None,
        "command.time_limit_s" if is_command else "run.time_limit_s": timeout,
        "cases.fields.epochs" if is_command else "training.epochs": override_epochs,
    }
    fields = [text.partition("=") for text in changed]
    settings |= {f"cases.fields.{name}" if is_command else name: value for name, _, value in fields}
    return [f"--{key}={value}" for key, value in settings.items() if value is not None]


def _filters(filters: Sequence[str], optimizer: str | None) -> list[str]:
    return [*filters, *([f"optimizer={optimizer}"] if optimizer else [])]


def _bytes(text: str) -> str:
    """Read a number in GiB, the unit of --wait-for-memory; a value with its own unit is used as is.

    >>> _bytes("18"), _bytes("500M")
    ('19327352832', '500M')
    """
    try:
        return str(int(float(text) * 2**30))
    except (ValueError, OverflowError):
        return text


def _commands(config: RunConfig) -> Iterator[str]:
    """Yield the commands that would be started for each case."""
    from gpuproof.suites.matrix.plan import plan

    planned = plan(config)
    for key in planned.order:
        yield f"# {key[0]}, launch {key[1] + 1}\n{planned.described(key)}\n"


def _try_folder(folder: Path | None, *, dry_run: bool) -> None:
    """Reject a folder that is not empty or, if anything is to be run, not writable.

    Raises:
        UsageError: the folder is not empty or not writable.
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise UsageError("is not empty", place=str(folder), next_step="Specify a new --output-dir")
    if not dry_run:
        try_place("--output-dir", folder, "folder")


def _copy(run: RunDirectory, folder: Path | None) -> None:
    """Copy the matrix files to the requested folder; an interrupted run does not have them yet."""
    from gpuproof.suites.matrix.exports import tree_name

    tree = run.root / tree_name(run.description()["created"])
    if folder is not None and tree.is_dir():
        with copying_results(tree, folder):
            shutil.copytree(tree, folder, dirs_exist_ok=True)
        click.echo(f"The files of the matrix are in {folder}", err=True)
