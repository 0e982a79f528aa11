"""`gpuproof run`: from a recipe to a result, and on from where a run was interrupted."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuproof.cli.fleet_options import HostChoice, host_options, is_of_hosts, refuse_nodes
from gpuproof.cli.options import json_option, log_options, node_side_for
from gpuproof.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from gpuproof.store.run import RunDirectory


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("config", required=False, metavar="CONFIG")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, metavar="[--KEY.SUBKEY=VALUE]...")
@click.option("--nproc", metavar="N", help="Ranks on this host, one device each (distributed.nproc).")
@click.option("--devices", metavar="0,2", help="Devices to use, as torch counts them (distributed.devices).")
@click.option("--timeout", metavar="SECONDS", help="Time that one launch may take (run.time_limit_s).")
@click.option("--python", metavar="PATH", help="Run the ranks with this Python, which needs torch only.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="RUN", help="Finish an interrupted run.")
@click.option("--retry-failed", is_flag=True, help="With --resume: launch again what failed, too.")
@click.option("--dry-run", is_flag=True, help="Print the command of each launch, and start nothing.")
@host_options
@json_option
@log_options
@click.pass_context
def run(
    ctx: click.Context,
    *,
    config: str | None,
    overrides: tuple[str, ...],
    nproc: str | None,
    devices: str | None,
    timeout: str | None,
    python: str | None,
    resume: Path | None,
    retry_failed: bool,
    dry_run: bool,
    as_json: bool,
    hosts: HostChoice,
) -> None:
    """Measure what a recipe describes.

    CONFIG is a YAML file, or the name of a recipe that comes with gpuproof: quick, load or serving. Any key
    of it can be set from here as --KEY.SUBKEY=VALUE; VALUE is read as YAML.

    \b
    gpuproof run quick
    gpuproof run configs/synthetic_resnet50.yaml --training.precision=bf16 --nproc 4
    gpuproof run quick --model.name=resnet50 --data.batch_size=64 --run.repeats=5
    gpuproof run quick --matrix.data.batch_size='[16, 32]' --matrix.training.precision='[fp32, bf16]'
    gpuproof run quick --data.name=synthetic --search.kind=batch_size
    gpuproof run serving --serving.latency_bound_s=0.1
    gpuproof run --resume results/quick/run_20261120T133012_4711
    gpuproof run quick --deployment-file cluster.json --ssh-key ~/.ssh/key.pem

    The first rank prints throughput with its interval, what could be wrong with it, and where the files
    lie. Under your own torchrun, start `python -m gpuproof run CONFIG` as the script.
    """  # noqa: D301  # click reads the backspace character
    words = [*overrides, *_as_overrides(nproc=nproc, devices=devices, timeout=timeout)]
    if hosts.are_named or (resume is not None and is_of_hosts(resume)):
        from gpuproof.cli.run_on_hosts import run_on_hosts

        ctx.exit(
            run_on_hosts(
                config,
                words,
                hosts=hosts,
                python=python,
                resume=None if resume is None else resumed(resume, config, words),
                retry_failed=retry_failed,
                dry_run=dry_run,
                as_json=as_json,
            )
        )
    if resume is not None:
        directory = resumed(resume, config, words)
    elif config is None:
        raise click.UsageError("Missing CONFIG, a YAML file or the name of a recipe; try: gpuproof run quick")
    elif dry_run:
        _print_commands(config, words)
        return
    else:
        directory = _created(config, words)
    ctx.exit(measure(directory, python=python, retry_failed=retry_failed, as_json=as_json))


def _as_overrides(*, nproc: str | None, devices: str | None, timeout: str | None) -> list[str]:
    """Turn the options that stand for a key of the config into the words that set it."""
    given = {
        "distributed.nproc": nproc,
        "distributed.devices": None if devices is None else f"[{devices}]",
        "run.time_limit_s": timeout,
    }
    return [f"--{key}={value}" for key, value in given.items() if value is not None]


def measure(
    directory: RunDirectory, *, python: str | None, retry_failed: bool, as_json: bool, command: str = "run"
) -> ExitCode:
    """Run the campaign of a run directory and show what it ends with; return the exit code."""
    from gpuproof.campaign import run_campaign
    from gpuproof.cli.progress import progress_on
    from gpuproof.cli.report import show_report
    from gpuproof.launchers.attached import attached_world_size
    from gpuproof.launchers.local import LocalLauncher
    from gpuproof.store.run import resume_command

    click.echo(f"Results go to {directory.root}", err=True)
    try:
        with (
            node_side_for(python) as worker,
            progress_on() as progress,
            closing(LocalLauncher(python=python or sys.executable, worker=worker)) as launcher,
        ):
            conclusion = run_campaign(
                directory,
                launcher=launcher,
                progress=progress,
                retry_failed=retry_failed,
                world_size=attached_world_size(os.environ),
            )
    except KeyboardInterrupt:
        click.echo(
            "Interrupted. What was measured is kept; go on with: "
            f"{resume_command(directory.root, command=command)}",
            err=True,
        )
        return ExitCode.INTERRUPTED
    show_report(conclusion.report, as_json=as_json)
    return conclusion.exit_code


def _created(config: str, words: list[str]) -> RunDirectory:
    from gpuproof.campaign import create_run
    from gpuproof.config.load import load_config
    from gpuproof.launchers.attached import become_follower, check_launch, is_follower

    loaded = load_config(config, words, environment=os.environ)
    check_launch(loaded.config, os.environ)
    refuse_nodes(loaded.config.distributed.nodes)
    if is_follower(os.environ):
        become_follower(loaded.config)
    return create_run(loaded.config, origins=loaded.origins, source=loaded.source)


def resumed(path: Path, config: str | None, words: list[str]) -> RunDirectory:
    """Open the run to finish.

    Raises:
        UsageError: there is none, or something else was asked for with it.
    """
    from gpuproof.launchers.attached import is_attached
    from gpuproof.store.run import RunDirectory

    if config is not None or words:
        raise UsageError(
            "a resumed run goes on with its own config",
            place="--resume",
            next_step="Leave CONFIG and all settings out, or start a new run",
        )
    if is_attached(os.environ):
        raise UsageError(
            "a run cannot be resumed under a launcher of yours: the other ranks would wait for a case "
            "that may be done",
            place="--resume",
            next_step="Start a new run",
        )
    return RunDirectory.open(path)


def _print_commands(config: str, words: list[str]) -> None:
    import shlex

    from gpuproof.config.load import load_config
    from gpuproof.launchers.local import LocalLauncher
    from gpuproof.suites.plan import next_cases

    loaded = load_config(config, words)
    for case in next_cases(loaded.config, results=()):
        folder = Path(loaded.config.run.save_dir, loaded.config.run.experiment_name, "RUN_ID")
        folder = folder / "cases" / case.case_id / str(case.replicate)
        port = 29500 if case.placement.ranks_per_host > 1 else None
        click.echo(shlex.join(LocalLauncher().command(case, folder, port=port)))
    if loaded.config.search.kind is not None:
        click.echo("What the search launches next depends on what these give.", err=True)
