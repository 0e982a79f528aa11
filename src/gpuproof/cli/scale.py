"""`gpuproof scale`: compare one device with several, with flags familiar from scaling scripts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from gpuproof.base.errors import EnvironmentUnfitError, ExitCode, UsageError
from gpuproof.base.files import copying_results, try_place
from gpuproof.cli.options import (
    HEADINGS,
    ConfigCommand,
    dry_run_option,
    measuring_options,
    refuse_dry_resume,
    refuse_settings_of_resumed,
)
from gpuproof.processes.granted import threads_per_rank, users_threads
from gpuproof.records.work.parallel import CommunicationProfile

if TYPE_CHECKING:
    from gpuproof.launchers.registry import HostChoice
    from gpuproof.store.run import RunDirectory

RECIPE = "scale"
SIZES_FLAG = "--batch-sizes"
LISTED = ("auto", "cuda", "xpu", "mps")
"""Device types that the probe counts; it counts neither CPU ranks nor types registered by other packages."""
KEYS = {
    "model": "model.name",
    "runs": "run.repeats",
    "device": "distributed.device",
    "framework": "training.framework",
    "reduction": "training.reduction",
    "communication_profile": "distributed.communication_profile",
}
"""Options that each set exactly one key."""
S2_FILES = ("benchmark_*_gpu.json", "comparison_report_*.md")


class ScaleCommand(ConfigCommand):
    """Accepts several numbers after `--batch-sizes`, like scaling scripts: `--batch-sizes 32 64 128`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Join the numbers into one argument before click reads them."""
        return super().parse_args(ctx, _joined(args))


def _joined(words: list[str]) -> list[str]:
    """Join the whole numbers that follow `--batch-sizes`.

    >>> _joined(["--runs", "3", "--batch-sizes", "32", "64", "--model", "large"])
    ['--runs', '3', '--batch-sizes', '32,64', '--model', 'large']
    """
    joined: list[str] = []
    for place, word in enumerate(words):
        follows = joined and place > 0 and word.isdecimal() and words[place - 1].isdecimal()
        if follows and len(joined) > 1 and joined[-2] == SIZES_FLAG:
            joined[-1] += f",{word}"
        else:
            joined.append(word)
    return joined


def _keep_headings(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[HEADINGS] = True


@click.command(cls=ScaleCommand, context_settings={"ignore_unknown_options": True})
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, metavar="[--KEY.SUBKEY=VALUE]...")
@click.option(
    "--model",
    default="medium",
    show_default=True,
    metavar="NAME",
    help="Model to train: any training workload.",
)
@click.option(
    "--gpu-mode",
    type=click.Choice(["single", "multi", "auto"]),
    help="single: one device; multi: one and several; auto: as a rule of thumb advises for the "
    "model and batch size. Default: multi if several devices are available.",
)
@click.option(
    SIZES_FLAG,
    default="16,32,64,128",
    show_default=True,
    metavar="N...",
    help="Batch sizes, in samples per step.",
)
@click.option(
    "--runs",
    metavar="N",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Launches (repeats in fresh processes) per point.",
)
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak", "both"]),
    default="both",
    show_default=True,
    help="Keep the total batch constant (strong), or the batch per device (weak).",
)
@click.option("--max-devices", type=click.IntRange(1), metavar="N", help="Maximum devices [default: all].")
@click.option(
    "--device",
    metavar="TYPE",
    default="auto",
    show_default=True,
    help="Type of device; with cpu, each CPU rank is a device.",
)
@click.option(
    "--framework",
    type=click.Choice(["torch", "tensorflow"]),
    default="torch",
    show_default=True,
    help=(
        "Training framework; TensorFlow trains only medium and large, under MirroredStrategy, and "
        "must be installed in --python."
    ),
)
@click.option(
    "--reduction",
    type=click.Choice(["auto", "nccl", "hierarchical_copy", "reduction_to_one_device"]),
    default="auto",
    show_default=True,
    help="How TensorFlow sums gradients.",
)
@click.option(
    "--communication-profile",
    type=click.Choice(get_args(CommunicationProfile)),
    default="none",
    show_default=True,
    help="Profile of NCCL settings to try; no profile is known to help.",
)
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for runs and for copies of the JSON files and the report; default: results, or "
    "the folder of the resumed run.",
)
@click.option(
    "--headings",
    is_flag=True,
    expose_value=False,
    callback=_keep_headings,
    help="Print Run i/N under a batch-size heading as each launch starts.",
)
@dry_run_option
@measuring_options
@click.pass_context
def scale(ctx: click.Context, /, *, resume: Path | None, output_dir: Path | None, **options: Any) -> None:
    """Measure whether using several devices is worthwhile.

    Each batch size is measured on one device and on 2, 4, 8 … up to all devices. Every launch is a fresh
    process, and launches are interleaved in random order. The report contains the speed-up with its interval,
    the efficiency, and advice. A recommendation is made only if the interval excludes 1.

    \b
    gpuproof scale --model medium --gpu-mode auto
    gpuproof scale --model large --gpu-mode auto --runs 25
    gpuproof scale --model medium --batch-sizes 32 64 128 --runs 20
    gpuproof scale --model medium --gpu-mode multi --runs 50
    gpuproof scale --model large --runs 10 --output-dir ./quick_test
    gpuproof scale --model medium --batch-sizes 64 128 256 --runs 30
    gpuproof scale --device cpu --max-devices 2 --gpu-mode multi --runs 5

    Exit code 5 if several devices are requested and fewer than two exist. With
    --one-job it is refused: a study chooses the hosts of each point.
    """  # noqa: D301  # click reads the backspace character
    ctx.exit(_scale(resume=resume, output_dir=output_dir, **options))


def _scale(
    *,
    resume: Path | None,
    output_dir: Path | None,
    overrides: tuple[str, ...],
    python: str | None,
    retry_failed: bool,
    dry_run: bool,
    as_json: bool,
    hosts: HostChoice,
    **options: Any,
) -> ExitCode:
    from gpuproof.cli.measuring import begin_run, finish_run, resumed, show_plan
    from gpuproof.launchers.surroundings import refuse_to_be_a_rank

    refuse_to_be_a_rank(os.environ, command="gpuproof scale")
    if resume is not None:
        refuse_dry_resume(dry_run=dry_run)
        refuse_settings_of_resumed(read=("output_dir", "headings"))
        try_place("--output-dir", output_dir, "folder")
        directory = resumed(resume, None, overrides, command=RECIPE)
        code = finish_run(
            directory, hosts=hosts, python=python, retry_failed=retry_failed, as_json=as_json, command=RECIPE
        )
        return _copy_files(directory, output_dir, code)
    ladder = _ladder_on(hosts, options["max_devices"]) if hosts.are_named else None
    words = [*_words(overrides, output_dir=output_dir, python=python, ladder=ladder, **options), *overrides]
    if dry_run:
        return show_plan(RECIPE, words, hosts=hosts, python=python)
    directory, code = begin_run(RECIPE, words, hosts=hosts, python=python, as_json=as_json, command=RECIPE)
    return _copy_files(directory, output_dir, code)


def _words(
    overrides: tuple[str, ...],
    *,
    output_dir: Path | None,
    python: str | None,
    gpu_mode: str | None,
    batch_sizes: str,
    scaling: str,
    max_devices: int | None,
    timeout: str | None,
    ladder: Sequence[int] | None,
    **direct: str,
) -> list[str]:
    """Convert the options into arguments that set recipe keys; `direct` are the options in `KEYS`."""
    laws = {"both": "[strong, weak]"}.get(scaling, f"[{scaling}]")
    words = _as_words(
        {
            **{KEYS[name]: str(value) for name, value in direct.items()},
            "scale.batch_sizes": f"[{batch_sizes}]",
            "scale.laws": laws,
            **({} if output_dir is None else {"run.save_dir": str(output_dir)}),
            **({} if timeout is None else {"run.time_limit_s": timeout}),
        }
    )
    device, framework = direct["device"], direct["framework"]
    is_here = ladder is None
    if ladder is None:
        ladder = _ladder(_count_devices(python, device, max_devices, framework=framework))
    if not _wants_several(gpu_mode, ladder[-1], [*words, *overrides]):
        ladder = [1]
    # Keep the thread count constant for every number of ranks: one rank with all CPUs is not the same program
    # as two ranks with half of them each.
    threads = threads_per_rank(None, num_ranks=ladder[-1], users=users_threads()) if is_here else 1
    chosen = {
        "scale.num_devices": f"[{', '.join(map(str, ladder))}]",
        "distributed.threads_per_rank": str(threads),
    }
    return [*words, *_as_words(chosen)]


def _as_words(values: Mapping[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in values.items()]


def _count_devices(python: str | None, device: str, at_most: int | None, *, framework: str) -> int:
    """Count this machine's devices; for types that its probe does not list, trust the requested number.

    Raises:
        EnvironmentUnfitError: the framework is not torch, and the given Python cannot import it.
    """
    from gpuproof.launchers.probe import probe

    is_probed = device in LISTED or framework != "torch"
    facts = probe(python, words=["--framework", framework]) if is_probed else {}
    if device not in LISTED:
        return at_most or 2
    num_gpus = len(facts["devices"])
    click.echo(f"Found {num_gpus} GPU(s)", err=True)
    return num_gpus if at_most is None else min(num_gpus, at_most)


def _wants_several(gpu_mode: str | None, available: int, words: Sequence[str]) -> bool:
    """Decide whether to measure several devices, and print why; `words` are the recipe's overrides.

    If no mode is set, the rule of thumb is only printed as a note and has no effect.

    Raises:
        EnvironmentUnfitError: several devices are requested, but there are fewer than two.
    """
    if gpu_mode == "single":
        return False
    if gpu_mode == "multi":
        if available < 2:
            raise EnvironmentUnfitError(
                f"Multi-GPU mode requires at least 2 GPUs; found {available}",
                place="--gpu-mode multi",
                next_step="Use --gpu-mode single, or --device cpu --max-devices 2 to try it on the CPU",
            )
        return True
    from gpuproof.config.load import load_config
    from gpuproof.suites.scale.advice import advise_before

    try:
        advice = advise_before(load_config(RECIPE, words).config)
    except UsageError:
        if gpu_mode is None:  # the advice has no effect here
            return available >= 2
        raise
    click.echo(
        f"Intelligent Strategy Decision: {advice.advice} - {advice.reason} (heuristic, not measured here)",
        err=True,
    )
    is_wanted = gpu_mode is None or advice.advice != "no"
    if is_wanted and available < 2:
        click.echo(
            f"Measuring one device: only {available} available, and a comparison needs several",
            err=True,
        )
    return is_wanted and available >= 2


def _ladder(available: int) -> list[int]:
    """Return the device counts 1, 2, 4 … and all.

    >>> _ladder(6)
    [1, 2, 4, 6]
    """
    doubled = [2**power for power in range(available.bit_length()) if 2**power < available]
    return [*doubled, available]


def _ladder_on(hosts: HostChoice, at_most: int | None) -> list[int]:
    """Return the device counts across hosts: 1, 2, 4 … all on the first host, then 2, 4 … all hosts.

    Raises:
        UsageError: neither the inventory nor --max-devices says how many devices the hosts have.
    """
    from gpuproof.launchers.registry import site_type

    numbers = site_type(hosts.launcher).device_numbers(hosts)
    per_host = min((number or 0 for number in numbers), default=0)
    if at_most is None and not per_host:
        raise UsageError(
            "the other host's number of devices is not known here",
            place="--on",
            next_step="Set it: --max-devices N, or `gpus` of each host in the inventory",
        )
    most = at_most or per_host * len(numbers)
    if not per_host or most <= per_host:
        return _ladder(most)
    whole = [per_host * number for number in _ladder(most // per_host)[1:]]
    return list(dict.fromkeys([*_ladder(per_host), *whole, most]))


def _copy_files(directory: RunDirectory, output_dir: Path | None, code: ExitCode) -> ExitCode:
    """Copy the files in S2's format to `output_dir`, or next to the runs; an interrupted run has none yet."""
    folder = output_dir or directory.root.parents[1]
    paths = [path for pattern in S2_FILES for path in sorted(directory.root.glob(pattern))]
    for path in paths:
        with copying_results(path, folder / path.name):
            shutil.copyfile(path, folder / path.name)
        click.echo(f"Benchmark complete! Results saved to: {folder / path.name}", err=True)
    if paths:
        click.echo("Validate over multiple runs before making a decision.", err=True)
    return code
