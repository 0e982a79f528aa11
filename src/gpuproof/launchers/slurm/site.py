"""Where a run executes on a Slurm cluster: jobs in the queue, or steps inside an allocation."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import click

from gpuproof.base import units
from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.launchers.archive import build_archive
from gpuproof.launchers.base import Launcher
from gpuproof.launchers.commands import EXAMPLE_PORT, INSTALLED_WORKER
from gpuproof.launchers.registry import HostChoice
from gpuproof.launchers.site import LaunchSite
from gpuproof.launchers.slurm.commands import SlurmCommands
from gpuproof.launchers.slurm.options import SlurmOptions, load_slurm_options
from gpuproof.launchers.slurm.text import SlurmNode, job_text, salloc_words, step_words
from gpuproof.records.case import Case
from gpuproof.store import layout
from gpuproof.store.names import HOSTS
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import HostPlace

ARCHIVE = "gpuproof-node.pyz"
JOB, NODES = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite(LaunchSite):
    """The options for a run's jobs, and its allocation if there is one."""

    launcher: ClassVar[str] = "slurm"
    starts: ClassVar[str] = "job scripts"
    reads_ranks: ClassVar[bool] = False
    """Inside an allocation, Slurm's variables describe the job in which gpuproof starts its steps."""

    options: SlurmOptions = field(default_factory=SlurmOptions)
    hosts: tuple[str, ...] = ()
    """The nodes of the allocation; empty if each launch is a job in the queue."""

    @classmethod
    def chosen(cls, choice: HostChoice, *, python: str | None) -> Self:
        """Read the options and, if this process is in an allocation, its nodes.

        Raises:
            UsageError: the file is wrong, or a single job is requested before its nodes are allocated.
            EnvironmentUnfitError: Slurm does not report which nodes there are.
        """
        options = _read_options(choice, python=python)
        nodes = allocated_nodes(os.environ)
        if nodes is not None:
            return cls(options=options, hosts=SlurmCommands().host_names(nodes))
        if choice.one_job:
            raise UsageError(
                "the number of nodes for the single job is not set, and there is no allocation yet",
                place="--one-job",
                next_step="Write --distributed.nodes=N instead of --one-job",
            )
        return cls(options=options)

    @classmethod
    def recorded(cls, run: RunDirectory, choice: HostChoice, *, python: str | None) -> Self:
        """Read back the options, and the nodes of an allocation."""
        options = SlurmOptions.model_validate(run.description()[cls.launcher])
        if choice.file:
            options = _read_options(choice, python=python)
        hosts = run.description().get(HOSTS, {}).get("hosts", ())
        return cls(options=options, hosts=tuple(host["name"] for host in hosts))

    @classmethod
    def enter(
        cls, choice: HostChoice, *, python: str | None, dry_run: bool, ranks_per_host: int, device: str
    ) -> str | None:
        """Run this same command again inside an allocation, with salloc; do nothing if already in one.

        Raises:
            UsageError: the file is invalid, or Slurm would not grant the request.
            EnvironmentUnfitError: Slurm does not respond.
        """
        if allocated_nodes(os.environ) is not None:
            return None
        options = _read_options(choice, python=python)
        words = salloc_words(options, ranks_per_host=ranks_per_host, device=device)
        this = [sys.executable, "-P", "-m", "gpuproof", *sys.argv[1:]]
        if options.setup:  # its steps inherit the environment that these lines leave
            this = ["bash", "-c", "\n".join([*options.setup, 'exec "$@"']), "setup", *this]
        if not dry_run:
            SlurmCommands().would_submit([word for word in words[1:] if not word.startswith("--immediate")])
            if options.pending_limit_s is not None:
                click.echo(
                    f"Requesting an allocation from Slurm, for at most {options.pending_limit_s:g} "
                    "s. If it gives up, `squeue --start` shows when nodes may be free; raise "
                    "pending_limit_s, or request less",
                    err=True,
                )
            sys.stdout.flush()
            sys.stderr.flush()
            # Without these, salloc exits with 1 when it gives up, which would look like a bug in gpuproof.
            unfit = dict.fromkeys(
                ("SLURM_EXIT_ERROR", "SLURM_EXIT_IMMEDIATE"), str(int(ExitCode.UNFIT_ENVIRONMENT))
            )
            os.execvpe("salloc", [*words, *this], {**os.environ, **unfit})  # noqa: S606, S607
        return shlex.join([*words, *this])

    def words(self, choice: HostChoice) -> list[str]:
        """Return the number of nodes in the single job."""
        return [f"--distributed.nodes={len(self.hosts)}"] if choice.one_job else []

    def places(self) -> Sequence[HostPlace]:
        """Return the nodes of the allocation; none for the queue."""
        return [HostPlace(name=host) for host in self.hosts]

    @property
    def text(self) -> str:
        """Describe the nodes of the allocation, or the queue."""
        if self.hosts:
            return f"{units.first_of(self.hosts)}, in this Slurm allocation"
        partition = f", partition {self.options.partition}" if self.options.partition else ""
        return f"Slurm{partition}, a job for each launch"

    def missing(self) -> Iterator[str]:
        """Yield a message if Slurm is not installed on this machine."""
        if shutil.which("sbatch") is None:
            yield (
                "sbatch is not installed here: start gpuproof on a login node of the cluster, or "
                "load its module"
            )

    def described(self) -> dict[str, Any]:
        """Return the options, and an allocation's nodes in the same form as any other hosts."""
        options = {self.launcher: self.options.model_dump(mode="json")}
        hosts = {"hosts": [{"name": host} for host in self.hosts], "currency": "USD"}
        return {**options, HOSTS: hosts} if self.hosts else options

    def shown(self, cases: Iterable[Case], run: Path) -> Iterator[str]:
        """Yield the script of each job, with similar launches as one array; or the step of each launch."""
        node = slurm_node(self.options, run)
        alike: dict[str, list[Case]] = defaultdict(list)
        for case in cases:
            if self.hosts:
                hosts = (case.placement.hosts or self.hosts)[: case.placement.num_hosts]
                folder = _folder(case, node.run)
                words = step_words(self.options, case, node, name="gpuproof", hosts=hosts, folder=folder)
                yield f"{shlex.join(words)}\n"
            else:
                text = job_text(self.options, case, node, name="", folders=[""], port=0)
                alike[text].append(case)
        for group in alike.values():
            folders = [_folder(case, node.run) for case in group]
            name = f"gpuproof-{Path(node.run).name}"
            yield job_text(self.options, group[0], node, name=name, folders=folders, port=EXAMPLE_PORT)

    @contextmanager
    def opened(self, *, environment: Mapping[str, str], many_launches: bool) -> Iterator[Launcher]:
        """Yield a launcher for jobs, or for steps inside the allocation.

        Raises:
            EnvironmentUnfitError: Slurm's commands are not installed here, or do not respond.
            UsageError: the run uses an allocation, and this process is not in it.
        """
        from gpuproof.launchers.slurm.allocation import SlurmAllocation
        from gpuproof.launchers.slurm.queue import SlurmQueue

        del many_launches
        commands = SlurmCommands(environment)

        @cache
        def node_for(run: Path) -> SlurmNode:
            node = slurm_node(self.options, run)
            if node.worker != INSTALLED_WORKER:
                # also on --resume: the existing file may be from another version
                build_archive(run / ARCHIVE)
            return node

        if self.hosts:
            yield SlurmAllocation(self, commands, node_for=node_for, environment=environment)
            return
        with closing(SlurmQueue(self.options, commands, node_for=node_for)) as queue:
            yield queue


def allocated_nodes(environment: Mapping[str, str]) -> str | None:
    """Return the nodes of this process's allocation, in Slurm's notation; None if it is not in one.

    Raises:
        UsageError: this process is one of several that srun started.
    """
    if JOB not in environment or NODES not in environment:
        return None
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        raise UsageError(
            f"srun started {environment['SLURM_STEP_NUM_TASKS']} copies of this command, but one is enough",
            place="--on slurm",
            next_step="Start gpuproof without srun; it starts the tasks of the nodes itself",
        )
    return environment[NODES]


def slurm_node(options: SlurmOptions, run: Path) -> SlurmNode:
    """Return how to start the node side on a node: as installed, or from a file in the run directory.

    The installed package works for the current Python, if it is on a disk that the nodes share. For another
    Python or in a container, the file in the run directory is used.
    """
    run = run.absolute()
    if options.python is None and options.container_image is None:
        return SlurmNode(python=sys.executable, worker=INSTALLED_WORKER, run=str(run))
    return SlurmNode(python=options.python or "python3", worker=(str(run / ARCHIVE),), run=str(run))


def _read_options(choice: HostChoice, *, python: str | None) -> SlurmOptions:
    options = load_slurm_options(choice.file) if choice.file else SlurmOptions()
    return options.model_copy(update={"python": options.python or python})


def _folder(case: Case, run: str) -> str:
    return f"{run}/{layout.launch_path(case.case_id, case.replicate)}"
