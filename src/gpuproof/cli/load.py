"""`gpuproof load`: the twelve tests of the load suite, here or on other hosts, and a JSON file of results."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpuproof.base.errors import ExitCode
from gpuproof.base.files import copying_results, try_place
from gpuproof.cli.older import answered_options
from gpuproof.cli.options import ConfigCommand, dry_run_option, measuring_options, refuse_dry_resume
from gpuproof.launchers.numbers import FiniteRange

if TYPE_CHECKING:
    from gpuproof.launchers.registry import HostChoice
    from gpuproof.store.run import RunDirectory

RECIPE = "load"
QUICK = {"num_epochs": 1, "num_batches": 30}
"""Enough steps for a median step time; all twelve tests should finish in under a minute on two CPU cores."""
QUICK_WARMUP_STEPS = 3
KEYS = {
    "device": "distributed.device",
    "num_epochs": "load.num_epochs",
    "num_batches": "load.num_batches",
    "metrics_sample_rate": "load.metrics_sample_rate_s",
    "num_workers": "data.num_workers",
    "timeout": "run.time_limit_s",
}
"""Option → the recipe key it sets."""
OF_THE_TESTS = (*KEYS, "quick", "loader")
"""Options that define what to measure; a resumed run already has them."""


@click.command(cls=ConfigCommand, context_settings={"ignore_unknown_options": True})
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, metavar="[--KEY.SUBKEY=VALUE]...")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="JSON file for the results (for a fleet, the results of all hosts); default: "
    "gpu_loadtest_results_<unix>.json in the current folder.",
)
@click.option("--device", metavar="TYPE", help="cuda, xpu, mps or cpu; default: the first one available.")
@click.option(
    "--num-epochs",
    metavar="N",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Epochs per training test.",
)
@click.option(
    "--num-batches",
    metavar="N",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Batches per epoch.",
)
@click.option(
    "--num-workers",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Data-loading processes with --loader; without --loader, the device generates samples.",
)
@click.option("--loader", is_flag=True, help="Load data on the host and copy each batch to the device.")
@click.option(
    "--quick",
    is_flag=True,
    help=f"Run all twelve tests with {QUICK['num_epochs']} epoch of {QUICK['num_batches']} "
    "batches, unless --num-epochs or --num-batches says otherwise.",
)
@click.option(
    "--metrics-sample-rate",
    type=FiniteRange(0.01),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Maximum time between two readings of GPU, CPU and memory. Tests that may be too short "
    "for ten readings are sampled at shorter intervals, down to 0.05 s; the results state the "
    "interval.",
)
@answered_options
@dry_run_option
@measuring_options
@click.pass_context
def load(ctx: click.Context, /, *, output: Path | None, dry_run: bool, **options: Any) -> None:
    """Run the twelve tests of the load suite, here or on a fleet.

    Two models (a simple CNN and a ResNet) run training and forward passes at three batch sizes each, every
    test with a fresh model. A failed test is reported with its error, the other tests continue, and the exit
    code is 3. Each measurement is written to disk before the next test starts.

    \b
    gpuproof load --quick
    gpuproof load --quick --dry-run
    gpuproof load --num-epochs 5 --num-batches 500 --output results.json
    gpuproof load --log-file gpu_test.log --num-epochs 2 --num-batches 100 --loader --num-workers 4
    gpuproof load --resume results/load/run_20261120T133012_4711 --retry-failed
    gpuproof load --deployment-file cluster.json --ssh-key ~/.ssh/key.pem --num-epochs 3 --num-batches 200

    Any recipe key can be set as --KEY.SUBKEY=VALUE: gpuproof load --training.precision=bf16
    """  # noqa: D301  # click reads the backspace character
    output = output or Path(f"gpu_loadtest_results_{int(time.time())}.json")
    stated = {name for name in options if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if dry_run:
        from gpuproof.cli.measuring import show_plan

        if options["resume"] is not None:
            refuse_dry_resume(dry_run=True)
        words = _words(options, stated, options["overrides"])
        where = {name: options[name] for name in ("hosts", "python")}
        ctx.exit(show_plan(RECIPE, words, writes=[output], **where))
    if not output.is_char_device():  # results are copied into it, nothing is renamed
        try_place("--output", output)
    directory, code = _run_tests(stated, **options)
    ctx.exit(_copy_results(directory, output, code))


def _run_tests(
    stated: set[str],
    *,
    python: str | None,
    resume: Path | None,
    overrides: tuple[str, ...],
    retry_failed: bool,
    as_json: bool,
    hosts: HostChoice,
    **tests: object,
) -> tuple[RunDirectory, ExitCode]:
    """Start the suite, or finish an earlier run; `stated` contains the options on the command line."""
    from gpuproof.cli.measuring import begin_run, finish_run

    words = _words(tests, stated, overrides)
    if resume is None:
        from gpuproof.launchers.surroundings import refuse_to_be_a_rank

        refuse_to_be_a_rank(os.environ, command="gpuproof load")
        return begin_run(RECIPE, words, hosts=hosts, python=python, as_json=as_json, command="load")
    directory = _resumed(resume, stated, overrides)
    code = finish_run(
        directory, hosts=hosts, python=python, retry_failed=retry_failed, as_json=as_json, command="load"
    )
    return directory, code


def _words(tests: dict[str, object], stated: set[str], overrides: Sequence[str]) -> list[str]:
    """Convert the options into arguments that set recipe keys; explicit keys come last."""
    values = {name: value for name, value in tests.items() if name in stated & set(KEYS)}
    if tests["quick"]:
        values = {**QUICK, **values}
    if tests["loader"]:
        values.setdefault("num_workers", tests["num_workers"])
    words = [f"--{KEYS[name]}={value}" for name, value in values.items()]
    if tests["quick"]:
        words.append(f"--benchmark.warmup_steps={QUICK_WARMUP_STEPS}")
    return [*words, *(["--data.loading=loader"] if tests["loader"] else []), *overrides]


def _resumed(path: Path, stated: set[str], overrides: Sequence[str]) -> RunDirectory:
    from gpuproof.cli.measuring import resumed

    options = [f"--{name.replace('_', '-')}" for name in OF_THE_TESTS if name in stated]
    return resumed(path, None, [*options, *overrides], command="load")


def _copy_results(directory: RunDirectory, output: Path, code: ExitCode) -> ExitCode:
    """Copy the results to their destination; for an interrupted run, copy what was measured so far."""
    from gpuproof.campaign.conclude import conclude
    from gpuproof.suites.by_host.exports import FLEET_FILE
    from gpuproof.suites.load.exports import RESULTS_FILE

    if code == ExitCode.INTERRUPTED:
        conclude(directory)
    results = next(
        path
        for name in (FLEET_FILE, RESULTS_FILE)
        if (path := directory.root / name).exists() or name == RESULTS_FILE
    )
    with copying_results(results, output):
        shutil.copyfile(results, output)
    click.echo(f"Results as JSON: {output}", err=True)
    return code
