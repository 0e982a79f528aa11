"""`--on slurm`: what of a cluster a command is told, what run.json keeps of it, and what --dry-run shows."""

from __future__ import annotations

import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gpuproof.cli.host_options import HostChoice
from gpuproof.errors import ExitCode, UsageError
from gpuproof.launchers.slurm.commands import SlurmCommands
from gpuproof.launchers.slurm.launcher import slurm_node
from gpuproof.launchers.slurm.options import SlurmOptions, load_slurm_options
from gpuproof.launchers.slurm.site import SlurmSite, allocated_nodes
from gpuproof.launchers.slurm.text import job_text, salloc_words, step_words
from gpuproof.records.case import Case
from gpuproof.store import layout
from gpuproof.store.description import HOSTS, SLURM
from gpuproof.suites.base import HostPlace

EXAMPLE_PORT = 29500


def read_site(choice: HostChoice, *, python: str | None) -> SlurmSite:
    """Read the options for Slurm, and which nodes this process has if it is in an allocation.

    Raises:
        UsageError: the file is wrong, or one job is asked for where there are no nodes yet.
        EnvironmentUnfitError: Slurm does not say which nodes these are.
    """
    options = _read_options(choice, python=python)
    nodes = allocated_nodes(os.environ)
    if nodes is not None:
        return SlurmSite(options=options, hosts=SlurmCommands().host_names(nodes))
    if choice.one_job:
        raise UsageError(
            "the number of nodes of the one job is not given, and there is no allocation yet",
            place="--one-job",
            next_step="Give it: --distributed.nodes=N",
        )
    return SlurmSite(options=options)


def enter_allocation(
    choice: HostChoice, *, python: str | None, dry_run: bool, ranks_per_host: int, device: str
) -> bool:
    """Go on inside an allocation, as this same command under salloc; return where this is one already.

    With `dry_run` print how, and return whether that is all.

    Raises:
        UsageError: the file is wrong, or Slurm would not grant what it asks for.
        EnvironmentUnfitError: Slurm does not answer.
    """
    if allocated_nodes(os.environ) is not None:
        return False
    options = _read_options(choice, python=python)
    words = salloc_words(options, ranks_per_host=ranks_per_host, device=device)
    own = [sys.executable, "-P", "-m", "gpuproof", *sys.argv[1:]]
    if not dry_run:
        SlurmCommands().would_submit([word for word in words[1:] if not word.startswith("--immediate")])
        if options.pending_limit_s is not None:
            click.echo(
                f"Asking Slurm for an allocation, for {options.pending_limit_s:g} s at most. If it gives up, "
                "`squeue --start` says when nodes may be free; raise pending_limit_s, or ask for less",
                err=True,
            )
        sys.stdout.flush()
        sys.stderr.flush()
        # Without these salloc ends with 1 where it gives up, which would be a bug of ours.
        unfit = dict.fromkeys(
            ("SLURM_EXIT_ERROR", "SLURM_EXIT_IMMEDIATE"), str(int(ExitCode.UNFIT_ENVIRONMENT))
        )
        os.execvpe("salloc", [*words, *own], {**os.environ, **unfit})  # noqa: S606, S607
    click.echo(shlex.join([*words, *own]))
    return True


def _read_options(choice: HostChoice, *, python: str | None) -> SlurmOptions:
    options = load_slurm_options(choice.slurm) if choice.slurm else SlurmOptions()
    return options.model_copy(update={"python": options.python or python})


def changed_site(site: SlurmSite, choice: HostChoice, *, python: str | None) -> SlurmSite:
    """Return where a run goes on: with other options where a file of them is named, on the same nodes.

    Raises:
        UsageError: the file is wrong.
    """
    return replace(site, options=_read_options(choice, python=python)) if choice.slurm else site


def site_words(choice: HostChoice, site: SlurmSite) -> list[str]:
    """Return the config words that the choice stands for."""
    return [f"--distributed.nodes={len(site.hosts)}"] if choice.one_job else []


def site_places(site: SlurmSite) -> Sequence[HostPlace]:
    """Return the nodes of the allocation; none for the queue."""
    return [HostPlace(name=host) for host in site.hosts]


def described_site(site: SlurmSite) -> dict[str, Any]:
    """Return what run.json keeps: the options, and the nodes of an allocation as any hosts."""
    kept: dict[str, Any] = {SLURM: site.options.model_dump(mode="json")}
    if site.hosts:
        kept[HOSTS] = {"hosts": [{"name": host} for host in site.hosts], "currency": "USD"}
    return kept


def kept_site(description: Mapping[str, Any]) -> SlurmSite:
    """Read back what run.json keeps."""
    hosts = description.get(HOSTS, {}).get("hosts", ())
    return SlurmSite(
        options=SlurmOptions.model_validate(description[SLURM]), hosts=tuple(host["name"] for host in hosts)
    )


def show_jobs(cases: Iterable[Case], site: SlurmSite, run: Path) -> None:
    """Print the script of each job, launches that are alike as one array; or the step of each launch."""
    node = slurm_node(site.options, run)
    alike: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if site.hosts:
            hosts = (case.placement.hosts or site.hosts)[: case.placement.num_hosts]
            words = step_words(
                site.options, case, node, name="gpuproof", hosts=hosts, folder=_folder(case, node.run)
            )
            click.echo(shlex.join(words))
        else:
            text = job_text(site.options, case, node, name="", folders=[""], port=0)
            alike[text].append(case)
    for group in alike.values():
        folders = [_folder(case, node.run) for case in group]
        name = f"gpuproof-{Path(node.run).name}"
        text = job_text(site.options, group[0], node, name=name, folders=folders, port=EXAMPLE_PORT)
        click.echo(text, nl=False)


def _folder(case: Case, run: str) -> str:
    return f"{run}/{layout.launch_path(case.case_id, case.replicate)}"
