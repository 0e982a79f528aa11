"""`gpuproof run`: measure what a recipe describes, or resume an interrupted run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuproof.base.errors import ExitCode
from gpuproof.cli.options import (
    ConfigCommand,
    complete_recipe,
    dry_run_option,
    measuring_options,
    refuse_dry_resume,
)

if TYPE_CHECKING:
    from gpuproof.launchers.registry import HostChoice

COLLECTIVE_LETTERS = {
    "b": ("min_bytes", "SIZE", "smallest size"),
    "e": ("max_bytes", "SIZE", "largest size"),
    "f": ("factor", "N", "factor between consecutive sizes"),
    "n": ("iterations", "N", "timed iterations per size"),
    "w": ("warmup_iterations", "N", "warm-up iterations per size"),
    "c": ("check_iterations", "N", "iterations with checked results"),
    "z": ("blocking", "0|1", "wait for all ranks after each iteration"),
}
"""Letter of an nccl-tests option → the `collective` key that it sets, and its meaning."""
BLOCKING = {"0": "false", "1": "true"}


def collective_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the single-letter options of nccl-tests to a command."""
    for letter, (key, metavar, what) in reversed(COLLECTIVE_LETTERS.items()):
        help_text = f"For collectives, as in nccl-tests: {what} (collective.{key})."
        command = click.option(f"-{letter}", f"letter_{letter}", metavar=metavar, help=help_text)(command)
    return command


@click.command(cls=ConfigCommand, context_settings={"ignore_unknown_options": True})
@click.argument("config", required=False, metavar="CONFIG", shell_complete=complete_recipe)
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, metavar="[--KEY.SUBKEY=VALUE]...")
@click.option("--nproc", metavar="N", help="Ranks on this host, one per device (distributed.nproc).")
@click.option("--devices", metavar="0,2", help="Devices to use, numbered as in torch (distributed.devices).")
@dry_run_option
@collective_options
@measuring_options
@click.pass_context
def run(ctx: click.Context, /, **options: Any) -> None:
    """Run the measurements defined in a recipe.

    CONFIG is a YAML file, or the name of a recipe built into gpuproof: quick, load, serving, collectives or
    pruning. Any recipe key can be set here as --KEY.SUBKEY=VALUE; VALUE is parsed as YAML.

    \b
    gpuproof run quick
    gpuproof run configs/synthetic_resnet50.yaml --training.precision=bf16 --nproc 4
    gpuproof run quick --model.name=resnet50 --data.batch_size=64 --run.repeats=5
    gpuproof run quick --matrix.data.batch_size='[16, 32]' --matrix.training.precision='[fp32, bf16]'
    gpuproof run quick --data.name=synthetic --search.kind=batch_size --run.repeats=1
    gpuproof run serving --serving.latency_bound_s=0.1
    gpuproof run collectives --nproc 8 -b 8 -e 8G -f 2
    gpuproof run --resume results/quick/run_20261120T133012_4711
    gpuproof run quick --deployment-file cluster.json --ssh-key ~/.ssh/key.pem

    The first rank prints throughput with its interval, possible problems, and the location of the files. To
    use your own torchrun: torchrun --no-python gpuproof run CONFIG.
    """  # noqa: D301  # click reads the backspace character
    ctx.exit(_run(**options))


def _run(
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
    **letters: str | None,
) -> ExitCode:
    from gpuproof.cli.gates.counts import filling
    from gpuproof.cli.measuring import begin_run, finish_run, resumed, show_plan
    from gpuproof.launchers.registry import site_type
    from gpuproof.launchers.surroundings import is_attached, take_ranks

    if site_type(hosts.launcher).reads_ranks:
        take_ranks(os.environ)
    words = [*overrides, *_as_overrides(nproc=nproc, devices=devices, timeout=timeout, letters=letters)]
    if resume is not None:
        refuse_dry_resume(dry_run=dry_run)
        directory = resumed(resume, config, words)
        return finish_run(directory, hosts=hosts, python=python, retry_failed=retry_failed, as_json=as_json)
    if config is None:
        raise click.UsageError("Missing CONFIG, a YAML file or the name of a recipe; try: gpuproof run quick")
    if not hosts.are_named and not is_attached(os.environ):
        config, words = filling(config, words, python=python)
    if dry_run:
        return show_plan(config, words, hosts=hosts, python=python)
    _, code = begin_run(config, words, hosts=hosts, python=python, as_json=as_json)
    return code


def _as_overrides(
    *, nproc: str | None, devices: str | None, timeout: str | None, letters: Mapping[str, str | None]
) -> list[str]:
    """Convert the options that set a config key into overrides."""
    settings = {
        "distributed.nproc": nproc,
        "distributed.devices": None if devices is None else f"[{devices}]",
        "run.time_limit_s": timeout,
    }
    for letter, (key, _, _) in COLLECTIVE_LETTERS.items():
        value = letters[f"letter_{letter}"]
        settings[f"collective.{key}"] = BLOCKING.get(value, value) if letter == "z" and value else value
    return [f"--{key}={value}" for key, value in settings.items() if value is not None]
