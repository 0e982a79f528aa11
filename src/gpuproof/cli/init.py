"""`gpuproof init`: a first recipe for this machine; `init prolog`: a gate before, after or during jobs.

A gate wraps `gpuproof validate --prolog` for a scheduler or other job launcher. One script behaves the same
everywhere: it passes if nothing could be evaluated, and fails if something was measured and is wrong. The
launchers differ only in how and where a failure is reported.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import cast

import click

from gpuproof.base.errors import UsageError
from gpuproof.base.files import packaged_text, try_place, write_text

LIMIT_S = 50
"""Timeout of the command in a wrapper: less than the minute after which Slurm kills a HealthCheckProgram."""
START_S = 5
"""Time that the command needs to start, in addition to its time budget."""
NPD_FOLDER = "/config/plugin"
"""Directory of the plug-in scripts in node-problem-detector's own images."""
WRAPPERS = ("slurm-prolog", "slurm-epilog", "slurm-health", "kubernetes-init", "node-problem-detector")
"""Job launchers that have a wrapper; `wrappers.toml` lists the differences between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """Settings that differ between job launchers."""

    title: str
    notes: tuple[str, ...]
    """Notes for the user, each written as one comment line."""
    is_of_job: bool = False
    """Whether to check only the GPUs of a job, if the scheduler lists them."""
    on_failure: str = ""
    """Shell lines that run before a failure is reported."""
    unjudged: int = 0
    """Exit code if nothing could be evaluated."""


@click.group(invoke_without_command=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    default=Path("gpuproof.yaml"),
    show_default=True,
    metavar="FILE",
    help="File to write to; - is standard output.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--python", metavar="PATH", help="Python to inspect, instead of the one that runs gpuproof.")
@click.pass_context
def init(ctx: click.Context, *, output: Path, force: bool, python: str | None) -> None:
    """Write a commented recipe that fits this machine.

    Device, ranks, precision, batch size and threads are derived from the machine's hardware; the recipe
    states the reason for each.
    """
    if ctx.invoked_subcommand is not None:
        return
    from gpuproof.config.first_recipe import first_recipe
    from gpuproof.launchers.probe import probe

    to_terminal = str(output) == "-"
    if not to_terminal and not force and output.exists():
        raise UsageError("exists already", place=str(output), next_step="Give --force, or another -o FILE")
    if not to_terminal:
        try_place("--output", output)
    recipe = first_recipe(probe(python))
    if to_terminal:
        click.echo(recipe, nl=False)
        return
    write_text(output, recipe)
    click.echo(f"Wrote {output}. Next: gpuproof run {output}")


@init.command(short_help="Write a wrapper that checks a node before, after or during jobs.")
@click.option("--for", "kind", type=click.Choice(WRAPPERS), required=True, help="Launcher for the gate.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Folder to write to, or a file (.sh, .yaml); otherwise print to standard output.",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option("--fail-closed", is_flag=True, help="Also fail if nothing could be evaluated.")
@click.option(
    "--gpuproof",
    default=None,
    metavar="COMMAND",
    help="Command that starts gpuproof there; default: the path of this gpuproof (in a pod: gpuproof).",
)
@click.option("--image", default="IMAGE", metavar="NAME", help="Image of the init container.")
@click.option(
    "--gpus",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    metavar="N",
    help="GPUs of the init container.",
)
@click.argument("options", nargs=-1, metavar="[-- OPTION...]")
@click.pass_context
def prolog(
    ctx: click.Context,
    *,
    kind: str,
    output: Path | None,
    force: bool,
    fail_closed: bool,
    gpuproof: str | None,
    image: str,
    gpus: int,
    options: tuple[str, ...],
) -> None:
    """Write a wrapper that checks a node before, after or during jobs: gpuproof validate --prolog.

    The wrapper fails if something was measured and is wrong, and passes if nothing could be evaluated.
    Options after -- are passed to gpuproof validate --prolog.

    \b
    gpuproof init prolog --for slurm-prolog -o /etc/slurm -- --baseline /etc/gpuproof/pod-a.json
    """  # noqa: D301  # click reads the backspace character
    here = shlex.join([sys.executable, "-P", "-m", "gpuproof"])
    command = gpuproof or ("gpuproof" if kind == "kubernetes-init" else here)
    _check_options(ctx, options)
    script = gate_script(kind, command=command, options=options, fail_closed=fail_closed)
    files = wrapper_files(kind, script, image=image, gpus=gpus)
    for name, text in files.items():
        if output is None:
            click.echo(text if len(files) == 1 else f"# ── {name}\n{text}", nl=False)
        else:
            _write(_place(output, files, name), text, force=force)


def _check_options(ctx: click.Context, options: Sequence[str]) -> None:
    """Reject options that each node would refuse, or with which the wrapper ends the command too early.

    Raises:
        UsageError: such an option was given; a gate that cannot judge would let every job pass.
    """
    from gpuproof.cli.gates.prolog import refuse_with_prolog
    from gpuproof.cli.validate import duration_s

    root = ctx.find_root()
    validate = cast("click.Group", root.command).get_command(root, "validate")
    given = validate.make_context("validate", ["--prolog", *options], parent=root).params if validate else {}
    refuse_with_prolog(
        [f"--{name.replace('_', '-')}" for name in ("resume", "soak", "dry_run") if given.get(name)]
    )
    budget = given.get("time_budget")
    if budget is not None and duration_s("--time-budget", budget) > LIMIT_S - START_S:
        raise UsageError(
            f"the wrapper ends the command after {LIMIT_S} s, without a verdict",
            place=f"--time-budget {budget}",
            next_step=f"Set at most {LIMIT_S - START_S}s",
        )


def _place(output: Path, files: Mapping[str, str], name: str) -> Path:
    """Return the path of a wrapper's file: inside a folder, or the given file itself.

    Raises:
        UsageError: a single file is given, but the wrapper consists of several files or needs another file
            type.
    """
    if output.suffix not in (".sh", ".yaml") or output.is_dir():
        return output / name
    if len(files) > 1 or output.suffix != Path(name).suffix:
        raise UsageError(
            f"this wrapper consists of {' and '.join(files)}",
            place=f"-o {output}",
            next_step="Name a folder for it",
        )
    return output


def gate_script(kind: str, *, command: str, options: Sequence[str], fail_closed: bool) -> str:
    """Return the shell script of a gate; a pure function."""
    wrapper = _wrapper(kind)
    return _filled(
        "gate.txt",
        kind=kind,
        title=wrapper.title,
        notes="\n".join(f"# {note}" for note in wrapper.notes),
        limit_s=str(LIMIT_S),
        fail_closed=str(int(fail_closed)),
        environment=packaged_text("templates/gates/jobs-gpus.txt") if wrapper.is_of_job else "",
        command=f"{command} {shlex.join(['validate', '--prolog', *options])}",
        unjudged=str(wrapper.unjudged),
        on_failure=wrapper.on_failure,
    )


def wrapper_files(kind: str, script: str, *, image: str, gpus: int) -> dict[str, str]:
    """Return a wrapper's files, keyed by file name."""
    if kind == "kubernetes-init":
        indented = "".join(f"{' ' * 10 if line.strip() else ''}{line}" for line in script.splitlines(True))
        fields = {"kind": kind, "title": _wrapper(kind).title, "image": image, "gpus": str(gpus)}
        fields["memory_gib"] = str(4 * gpus)
        text = _filled("init-container.yaml", script=indented.rstrip(), **fields)
        return {f"gpuproof-{kind}.yaml": text}
    name = f"gpuproof-{kind}.sh"
    if kind == "node-problem-detector":
        config = _filled("node-problem-detector.json", path=f"{NPD_FOLDER}/{name}")
        return {name: script, f"gpuproof-{kind}.json": config}
    return {name: script}


def _filled(name: str, **values: str) -> str:
    return Template(packaged_text(f"templates/gates/{name}")).substitute(values)


def _write(path: Path, text: str, *, force: bool) -> None:
    if path.exists() and not force:
        raise UsageError("exists already", place=str(path), next_step="Give --force, or another -o PATH")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(error.strerror or str(error), place=str(path.parent)) from error
    write_text(path, text)
    if path.suffix == ".sh":
        path.chmod(0o755)
    click.echo(f"Wrote {path}")


def _wrapper(kind: str) -> Wrapper:
    import tomllib  # imported only for job launchers, so that --help stays fast

    from gpuproof.records.codec import from_json

    wrappers = tomllib.loads(packaged_text("templates/gates/wrappers.toml"))
    return from_json(Wrapper, wrappers[kind], place="wrappers.toml")
