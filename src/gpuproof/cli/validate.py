"""`gpuproof validate`: is this machine or cluster ready for production? Measure, or re-evaluate."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.base.files import try_place
from gpuproof.cli.options import (
    ConfigCommand,
    RunName,
    dry_run_option,
    measuring_options,
    refuse_dry_resume,
    refuse_settings_of_resumed,
    refuse_unread,
    say,
)
from gpuproof.cli.report import junit_strict_option

if TYPE_CHECKING:
    from gpuproof.launchers.registry import HostChoice

COMMAND = "validate"
RECIPES = {
    "quick": "validate-quick",
    "standard": "validate",
    "burn-in": "validate-burn-in",
    "playbook": "validate-playbook",
    "prolog": "validate-prolog",
}
MODES = {"full": None, "training": "training", "nccl": "collective"}
"""S3's two test modes, each with its stage; full runs all stages of the recipe."""
KEYS = {
    "model": "model.name",
    "batch_size": "data.batch_size",
    "num_classes": "model.num_classes",
    "learning_rate": "training.learning_rate",
    "warmup_iterations": "benchmark.warmup_steps",
    "active_iterations": "benchmark.measure_steps",
    "nproc": "distributed.nproc",
    "device": "distributed.device",
    "devices": "distributed.devices",
    "timeout": "run.time_limit_s",
    "runs": "run.repeats",
    "storage_dir": "validate.storage_dir",
    "spares": "validate.spares",
    "expected_gpus": "validate.expected_gpus",
    "sku": "validate.sku",
}
"""Option → the recipe key it sets."""
DATA = {
    "cifar10": ("CIFAR10", "cifar-10-batches-py"),
    "cifar100": ("CIFAR100", "cifar-100-python"),
    "fashion_mnist": ("FashionMNIST", "fashion-mnist"),
    "imagenet": ("ImageFolder", "train"),
}
"""For --data-mode: the data set, and the folder that has to exist in --data-dir."""
BESIDE = ("junit", "junit_strict", "bundle", "write_rules")
"""Options for files that are written next to the run."""
READ_WITH_FROM = (*BESIDE, "judged_run", "rules", "baseline", "references", "as_json", "log_file", "verbose")
TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
WITHIN_ALLOCATION = "where: a Slurm allocation, requested first; its nodes determine the launches"


@click.command(cls=ConfigCommand, context_settings={"ignore_unknown_options": True})
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED, metavar="[--KEY.SUBKEY=VALUE]...")
@click.option(
    "--recipe",
    default="standard",
    show_default=True,
    metavar="NAME",
    help="quick (minutes), standard (half an hour), burn-in (a day), playbook (fixed, agreed "
    "thresholds), or a YAML file.",
)
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    default="full",
    show_default=True,
    help="Run all stages of the recipe, only the training test, or only the collective bandwidth test.",
)
@click.option(
    "--rules",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Additional rules (docs/guides/rules.md); they override recipe rules of the same name.",
)
@click.option("--baseline", metavar="NAME|FILE", help="Results of the fleet, from gpuproof baseline record.")
@click.option(
    "--references",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Results of other cards of the same model, from gpuproof baseline export --reference.",
)
@click.option("--model", metavar="NAME", help="Model to train: resnet50, resnet18, transformer, …")
@click.option("--batch-size", metavar="N", help="Samples per device and step.")
@click.option(
    "--data-mode",
    type=click.Choice(["synthetic", *DATA]),
    help="Data set to train on; synthetic is generated on the device.",
)
@click.option("--data-dir", metavar="DIR", help="Folder containing the data set; default: ./data.")
@click.option(
    "--allow-fallback",
    is_flag=True,
    help="Train on synthetic data if the data set is missing; the report says so.",
)
@click.option("--num-classes", metavar="N", help="Number of classes in the model.")
@click.option("--learning-rate", metavar="RATE", help="Learning rate.")
@click.option("--warmup-iterations", metavar="N", help="Warm-up training steps before the measured ones.")
@click.option("--active-iterations", metavar="N", help="Training steps to measure.")
@click.option("--runs", metavar="N", help="Launches (repeats in new processes) of each test except the soak.")
@click.option("--soak", metavar="TIME", help="Run all stages, then train for this long, e.g. 30m or 24h.")
@click.option("--storage-dir", metavar="DIR", help="Also test reads and writes in this folder on each host.")
@click.option("--nproc", metavar="N", help="Devices on each host; default: all available.")
@click.option("--devices", metavar="0,2", help="Devices to use; other devices are not validated.")
@click.option("--device", metavar="TYPE", help="Type of device; default: first available of CUDA, XPU, MPS.")
@click.option("--time-budget", metavar="TIME", help="Skip and report tests beyond this time, e.g. 30m or 2h.")
@click.option(
    "--prolog",
    is_flag=True,
    help="Pre-job gate: checks only this node, takes 30 s (--time-budget), prints one line; see init prolog.",
)
@click.option(
    "--expected-hosts",
    metavar="A,B|FILE",
    help="Hosts that must be present: names, or a file with one per line.",
)
@click.option(
    "--expected-gpus",
    type=click.IntRange(1),
    metavar="N",
    help="Number of GPUs that each host must have; default: see docs/guides/validate.md.",
)
@click.option("--sku", metavar="NAME", help="Expected product of each host, e.g. DGX H100 or p5.48xlarge.")
@click.option("--spares", metavar="N", help="Number of hosts that may fail; the result lists hosts to use.")
@click.option("--allow-cpu", is_flag=True, help="Run without a GPU; at best INCONCLUSIVE with exit code 4.")
@click.option("--allow-exclusions", is_flag=True, help="Exit with 0 if all non-excluded parts are ready.")
@click.option(
    "--from",
    "judged_run",
    type=RunName(),
    metavar="RUN",
    help="Re-judge an existing run or evidence archive without measuring or changing anything.",
)
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Also write JUnit XML.")
@junit_strict_option
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Pack the evidence, without secrets, into a tar.gz with a SHA-256 of each file.",
)
@click.option(
    "--write-rules",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a rule template for each rate that no rule checks; agreed values are one way to reach READY.",
)
@dry_run_option
@measuring_options
@click.pass_context
def validate(
    ctx: click.Context,
    /,
    *,
    rules: Path | None,
    baseline: str | None,
    references: Path | None,
    **options: Any,
) -> None:
    """Check whether a machine or cluster is ready for production.

    The verdict is READY, READY-WITH-EXCLUSIONS, NOT-READY or INCONCLUSIVE. The command measures matmuls and
    memory on every device, collectives within hosts and across all hosts, and training across all hosts. For
    READY, every aspect must be evaluated with enough precision, against a baseline or against agreed values.

    \b
    gpuproof validate --rules ours.yaml
    gpuproof validate --recipe quick --time-budget 10m
    gpuproof validate --deployment-file cluster.json --expected-hosts node1,node2 --junit validate.xml
    gpuproof validate --mode nccl
    gpuproof validate --recipe burn-in --soak 24h
    gpuproof validate --write-rules ours.yaml
    gpuproof validate --from results/validate/RUN --rules ours.yaml
    gpuproof validate --from results/validate/RUN --bundle evidence.tar.gz
    gpuproof validate --allow-cpu --recipe quick --model resnet18 --batch-size 4
    gpuproof validate --prolog --baseline pod-a
    torchrun --nproc-per-node 8 --no-python gpuproof validate --mode nccl

    Exit code 0 for READY, 3 for NOT-READY or READY-WITH-EXCLUSIONS, 4 for INCONCLUSIVE, 5 if there is no GPU
    and none is expected.
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.cli.standards.judging import judge_again, read_standards

    standards = read_standards(rules, baseline, references)
    outputs = _outputs(options)
    if (judged_run := options.pop("judged_run")) is not None:
        refuse_unread("--from", read=READ_WITH_FROM)
        ctx.exit(judge_again(judged_run, standards, as_json=options["as_json"], **outputs))
    outputs |= {name: options.pop(name) for name in ("resume", "dry_run")}
    ctx.exit((_gate if options.pop("prolog") else _validate)(standards=standards, options=options, **outputs))


def _outputs(options: dict[str, Any]) -> dict[str, Any]:
    """Return the files to write next to the run; if one is not writable, nothing is measured."""
    paths = {name: options.pop(name) for name in ("junit", "bundle", "write_rules")}
    for name, path in paths.items():
        try_place(f"--{name.replace('_', '-')}", path, "new file" if name == "write_rules" else "file")
    return {**paths, "junit_strict": options.pop("junit_strict")}


def _gate(*, standards: Mapping[str, Any], options: dict[str, Any], **outputs: Any) -> ExitCode:
    from gpuproof.cli.gates.prolog import judge_by_options

    words = partial(_words, options, standards)
    return judge_by_options(options, recipes=RECIPES, words=words, seconds=duration_s, **outputs)


def _validate(
    *,
    resume: Path | None,
    dry_run: bool,
    standards: Mapping[str, Any],
    options: dict[str, Any],
    **beside: Any,
) -> ExitCode:
    from gpuproof.cli.gates.counts import count_devices
    from gpuproof.cli.measuring import begin_run, finish_run, print_plan, resumed, show_plan
    from gpuproof.cli.standards.judging import written
    from gpuproof.launchers.registry import site_type

    how = {name: options.pop(name) for name in ("hosts", "python", "as_json")}
    retry_failed = options.pop("retry_failed")
    if resume is not None:
        refuse_dry_resume(dry_run=dry_run)
        refuse_settings_of_resumed(read=BESIDE)
        directory = resumed(resume, None, options["overrides"], command=COMMAND)
        code = finish_run(directory, retry_failed=retry_failed, command=COMMAND, **how)
        return written(directory, code, **beside)
    options["nproc"] = _ranks(how["hosts"], options["nproc"])
    recipe = RECIPES.get(options["recipe"], options["recipe"])
    count = partial(count_devices, how["python"])
    words = [*_words(options, standards, hosts=how["hosts"], count=count), *options["overrides"]]
    salloc = site_type(how["hosts"].launcher).enter(
        how["hosts"],
        python=how["python"],
        dry_run=dry_run,
        ranks_per_host=int(nproc) if (nproc := str(options["nproc"])).isdecimal() else 1,
        device=options["device"] or "",
    )
    if salloc is not None:
        print_plan([WITHIN_ALLOCATION], [f"{salloc}\n"])
        return ExitCode.DONE
    if dry_run:
        writes = [beside[name] for name in ("junit", "bundle", "write_rules")]
        return show_plan(recipe, words, hosts=how["hosts"], python=how["python"], writes=writes)
    directory, code = begin_run(recipe, words, command=COMMAND, **how)
    return written(directory, code, **beside)


def _ranks(hosts: HostChoice, nproc: str | None) -> str | None:
    """Return the requested number of ranks; under the user's own launcher, the number it started.

    Raises:
        UsageError: launchers contradict each other or `--nproc`, or this process is a rank but should start
            others.
    """
    from gpuproof.launchers.surroundings import attached_world_size, refuse_to_be_a_rank, take_ranks

    if hosts.are_named:
        refuse_to_be_a_rank(os.environ, command="gpuproof validate on named hosts")
        return nproc
    take_ranks(os.environ)
    size = attached_world_size(os.environ)
    if size is None:
        return nproc
    if nproc not in (None, str(size)):
        raise UsageError(
            f"{nproc} ranks are requested, but your own launcher started {size}",
            place="--nproc",
            next_step="Omit it under torchrun, srun or mpirun",
        )
    return str(size)


def _words(
    options: Mapping[str, Any],
    standards: Mapping[str, Any],
    *,
    hosts: HostChoice,
    count: Callable[[str], int],
) -> list[str]:
    """Convert the options into arguments that set recipe keys."""
    from gpuproof.cli.gates.counts import device_words, training_words

    of_suite = _options_of_suite(options)
    data = _data(options["data_mode"], options["data_dir"], may_fall_back=options["allow_fallback"])
    values = {KEYS[name]: options[name] for name in KEYS if options[name] is not None}
    if options["devices"] is not None:
        values["distributed.devices"] = f"[{options['devices']}]"
        values.setdefault("distributed.nproc", len(options["devices"].split(",")))
    recipe = RECIPES.get(options["recipe"], options["recipe"])
    # Querying the devices takes seconds, so report a mistyped argument first.
    values |= device_words(options, hosts, count, recipe=recipe) | data | of_suite
    values |= {f"validate.{name}": json.dumps(value) for name, value in standards.items()}
    values |= training_words((*values, *options["overrides"]))
    return [f"--{key}={value}" for key, value in values.items()]


def _options_of_suite(options: Mapping[str, Any]) -> dict[str, Any]:
    from gpuproof.cli.gates.counts import host_names
    from gpuproof.config.load import load_config
    from gpuproof.records.codec import to_json
    from gpuproof.suites.validate.options import read_options, rows_of_stage

    values: dict[str, Any] = {
        f"validate.{name}": "true" for name in ("allow_cpu", "allow_exclusions") if options[name]
    }
    if (stage := MODES[options["mode"]]) is not None:
        values["validate.stages"] = f"[{stage}]"
        values["validate.aspects"] = json.dumps(to_json(rows_of_stage(stage)))
        values["validate.ready_for"] = stage
    if options["time_budget"] is not None:
        budget_s = duration_s("--time-budget", options["time_budget"])
        values["validate.time_budget_s"] = budget_s
        values["run.time_limit_s"] = options["timeout"] or min(budget_s, 7 * TIMES["d"])
    if options["soak"] is not None:
        if options["mode"] != "full":
            raise UsageError("a soak comes after all other stages", place="--soak", next_step="Omit --mode")
        values["validate.soak_s"] = duration_s("--soak", options["soak"])
        recipe = RECIPES.get(options["recipe"], options["recipe"])
        stages = read_options(load_config(recipe, options["overrides"]).config).stages
        values["validate.stages"] = json.dumps([*(stage for stage in stages if stage != "soak"), "soak"])
    if options["expected_hosts"] is not None:
        values["validate.expected_hosts"] = json.dumps(host_names(options["expected_hosts"]))
    return values


def _data(mode: str | None, folder: str | None, *, may_fall_back: bool) -> dict[str, Any]:
    """Return the recipe keys for a data set.

    Raises:
        UsageError: the data set is missing or unreadable, and no fallback is allowed.
    """
    if mode is None or mode == "synthetic":
        if folder is not None:
            say(f"--data-dir {folder} has no effect: --data-mode names no data set", err=True)
        return {} if mode is None else {"data.name": "synthetic"}
    name, inside = DATA[mode]
    folder = folder or "./data"
    if (Path(folder) / inside).is_dir():
        return {"data.name": name, "data.path": folder}
    cause = f"there is no {inside} in {folder}"
    if not may_fall_back:
        raise UsageError(
            cause,
            place=f"--data-mode {mode}",
            next_step="Put it there, use --data-mode synthetic, or allow the latter with --allow-fallback",
        )
    note = f"{cause}: trained on synthetic data instead of {mode} (--allow-fallback)"
    say(note, err=True)
    return {"data.name": "synthetic", "validate.data_replaced": json.dumps(note)}


def duration_s(place: str, text: str) -> float:
    """Parse a duration such as 90s, 30m, 2h or 1d.

    Raises:
        UsageError: the text is not a valid duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a time", place=place, next_step="Write 90s, 30m, 2h or 1d")
    return float(match[1]) * TIMES[match[2]]
