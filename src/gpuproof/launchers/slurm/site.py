"""Where on a Slurm cluster a run takes place: jobs of the queue, or steps inside of an allocation."""

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
    """The options of a run's jobs, and the allocation that it runs in, if any."""

    launcher: ClassVar[str] = "slurm"
    starts: ClassVar[str] = "job scripts"
    reads_ranks: ClassVar[bool] = False
    """Inside of an allocation Slurm's variables are of the job that gpuproof starts steps in."""

    options: SlurmOptions = field(default_factory=SlurmOptions)
    hosts: tuple[str, ...] = ()
    """The nodes of the allocation; none where each launch is a job of the queue."""

    @classmethod
    def chosen(cls, choice: HostChoice, *, python: str | None) -> Self:
        """Read the options, and which nodes this process has if it is in an allocation.

        Raises:
            UsageError: the file is wrong, or one job is asked for where there are no nodes yet.
            EnvironmentUnfitError: Slurm does not say which nodes these are.
        """
        options = _read_options(choice, python=python)
        nodes = allocated_nodes(os.environ)
        if nodes is not None:
            return cls(options=options, hosts=SlurmCommands().host_names(nodes))
        if choice.one_job:
            raise UsageError(
                "the number of nodes of the one job is not given, and there is no allocation yet",
                place="--one-job",
                next_step="Give it: --distributed.nodes=N",
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
        """Go on inside an allocation, as this same command under salloc; do nothing where this is one.

        Raises:
            UsageError: the file is wrong, or Slurm would not grant what it asks for.
            EnvironmentUnfitError: Slurm does not answer.
        """
        if allocated_nodes(os.environ) is not None:
            return None
        options = _read_options(choice, python=python)
        words = salloc_words(options, ranks_per_host=ranks_per_host, device=device)
        this = [sys.executable, "-P", "-m", "gpuproof", *sys.argv[1:]]
        if not dry_run:
            SlurmCommands().would_submit([word for word in words[1:] if not word.startswith("--immediate")])
            if options.pending_limit_s is not None:
                click.echo(
                    f"Asking Slurm for an allocation, for {options.pending_limit_s:g} s at most. If it gives "
                    "up, `squeue --start` says when nodes may be free; raise pending_limit_s, or ask for "
                    "less",
                    err=True,
                )
            sys.stdout.flush()
            sys.stderr.flush()
            # Without these salloc ends with 1 where it gives up, which would be a bug of ours.
            unfit = dict.fromkeys(
                ("SLURM_EXIT_ERROR", "SLURM_EXIT_IMMEDIATE"), str(int(ExitCode.UNFIT_ENVIRONMENT))
            )
            os.execvpe("salloc", [*words, *this], {**os.environ, **unfit})  # noqa: S606, S607
        return shlex.join([*words, *this])

    def words(self, choice: HostChoice) -> list[str]:
        """Return the number of nodes of the one job."""
        return [f"--distributed.nodes={len(self.hosts)}"] if choice.one_job else []

    def places(self) -> Sequence[HostPlace]:
        """Return the nodes of the allocation; none for the queue."""
        return [HostPlace(name=host) for host in self.hosts]

    @property
    def text(self) -> str:
        """The nodes of the allocation, or the queue."""
        if self.hosts:
            return f"{units.first_of(self.hosts)}, of this allocation of Slurm"
        partition = f", partition {self.options.partition}" if self.options.partition else ""
        return f"Slurm{partition}, a job for each launch"

    def missing(self) -> Iterator[str]:
        """Yield that this machine has no Slurm."""
        if shutil.which("sbatch") is None:
            yield "sbatch is not here: start it on a login node of the cluster, or load its module"

    def described(self) -> dict[str, Any]:
        """Return the options, and the nodes of an allocation as any hosts."""
        options = {self.launcher: self.options.model_dump(mode="json")}
        hosts = {"hosts": [{"name": host} for host in self.hosts], "currency": "USD"}
        return {**options, HOSTS: hosts} if self.hosts else options

    def shown(self, cases: Iterable[Case], run: Path) -> Iterator[str]:
        """Yield the script of each job, launches that are alike as one array; or the step of each launch."""
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
        """Give a launcher of jobs, or of steps inside of the allocation.

        Raises:
            EnvironmentUnfitError: Slurm's commands are not here, or nobody answers them.
            UsageError: the run takes place in an allocation, and this is not in it.
        """
        from gpuproof.launchers.slurm.allocation import SlurmAllocation
        from gpuproof.launchers.slurm.queue import SlurmQueue

        del many_launches
        commands = SlurmCommands(environment)

        @cache
        def node_for(run: Path) -> SlurmNode:
            node = slurm_node(self.options, run)
            if node.worker != INSTALLED_WORKER:
                build_archive(run / ARCHIVE)  # anew on --resume: it may be another version's
            return node

        if self.hosts:
            yield SlurmAllocation(self, commands, node_for=node_for, environment=environment)
            return
        with closing(SlurmQueue(self.options, commands, node_for=node_for)) as queue:
            yield queue


def allocated_nodes(environment: Mapping[str, str]) -> str | None:
    """Return the nodes of the allocation that this process is in, in Slurm's notation; None outside of one.

    Raises:
        UsageError: this is one of several processes that srun started.
    """
    if JOB not in environment or NODES not in environment:
        return None
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        raise UsageError(
            f"srun started {environment['SLURM_STEP_NUM_TASKS']} of this command, and one is enough",
            place="--on slurm",
            next_step="Start it without srun; it starts the tasks of the nodes itself",
        )
    return environment[NODES]


def slurm_node(options: SlurmOptions, run: Path) -> SlurmNode:
    """Say how the node side is started on a node: as installed, or from one file in the run directory.

    The installed one is for the Python that runs this, on a disk that the nodes share. Another Python, and a
    container, take the file.
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
