"""A real Slurm for tests: munged, slurmctld, and a slurmd a node, each node with a host name of its own.

Needs slurm-wlm and munge, and root, as `.ci/run` installs them. Nothing of the machine's own Slurm is read
or written: keys, sockets, ports and state are of the folder that is given.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from ports import free_ports

CONFIG = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SlurmctldTimeout=30
SlurmdTimeout={slurmd_timeout_s}
InactiveLimit=0
KillWait=60
MessageTimeout=100
BatchStartTimeout=300
TCPTimeout=60
GresTypes=gpu
NodeName=n[1-{num_nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] CPUs=8 \
CoresPerSocket=8 RealMemory=4000 Gres=gpu:8 State=UNKNOWN
PartitionName=debug Nodes=n[1-{num_nodes}] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n[1-{num_nodes}] MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
PartitionName=short Nodes=n[1-{num_nodes}] MaxTime=1 State=UP
"""
GRES = "NodeName=n[1-{num_nodes}] Name=gpu File=/dev/tty[0-7]\n"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin"
"""Where the daemons are looked for."""
PATIENCE_S = 300.0


@dataclass(kw_only=True)
class SlurmWorld:
    """A running cluster of nodes n1, n2 …"""

    folder: Path
    num_nodes: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> Mapping[str, str]:
        """What a command needs to reach this cluster and no other."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [f"n{number + 1}" for number in range(self.num_nodes)]

    def start(self, name: str, *command: str) -> None:
        """Start one of its processes."""
        with (self.folder / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self.environment, "PATH": SEARCHED},
                start_new_session=True,
            )

    def start_node(self, node: str) -> None:
        """Start a node's slurmd, in a namespace where the node's name is the host's."""
        command = f"hostname {node} && exec slurmd -D -N {node}"
        self.start(node, "unshare", "--uts", "sh", "-c", command)

    def ask(self, *command: str) -> str:
        """Run a command of Slurm's; return what it prints."""
        environment = {**os.environ, **self.environment}
        answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
        assert answer.returncode == 0, (command, answer.stderr)
        return answer.stdout

    def allocate(self, *options: str) -> str:
        """Take nodes, as salloc would for a shell that goes on; return the job."""
        answer = subprocess.run(
            ["salloc", "--no-shell", *options],
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment},
            timeout=PATIENCE_S,
        )
        return answer.stderr.partition("Granted job allocation")[2].split()[0]

    def jobs(self) -> list[str]:
        """Return the jobs that have not ended: id and state."""
        return self.ask("squeue", "--noheader", "--array", "--format=%i %T").splitlines()

    def wait_until_idle(self) -> None:
        """Wait until every node takes work."""
        deadline_s = time.monotonic() + PATIENCE_S
        said = ""
        while said.split() != ["idle"] * self.num_nodes:
            assert time.monotonic() < deadline_s, (said, self.logs())
            time.sleep(0.1)
            with suppress(AssertionError):
                said = self.ask("sinfo", "--Node", "--noheader", "--partition=debug", "--format=%T")

    def logs(self) -> str:
        """Return the end of every log."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in paths)

    def kill_node(self, node: str) -> None:
        """End a node at once, as a power cut would."""
        for pid in _in_namespace_of(self.processes[node].pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes.pop(node).wait()

    def close(self) -> None:
        """End everything."""
        for node in self.nodes:
            if node in self.processes:
                self.kill_node(node)
        for process in self.processes.values():
            process.kill()
            process.wait()


def _in_namespace_of(pid: int) -> list[int]:
    """Return every process of a node: they leave slurmd's session, and keep its name of the host."""
    own = os.readlink(f"/proc/{pid}/ns/uts")
    found = []
    for other in psutil.pids():
        with suppress(OSError):
            if os.readlink(f"/proc/{other}/ns/uts") == own:
                found.append(other)
    return found


@contextmanager
def slurm_world(folder: Path, *, num_nodes: int = 4, slurmd_timeout_s: int = 300) -> Iterator[SlurmWorld]:
    """Give a running cluster; end it and all that runs there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").mkdir()
    first = free_ports(num_nodes + 1, "")
    ports = (first, first + 1, first + num_nodes)
    text = CONFIG.format(folder=folder, ports=ports, num_nodes=num_nodes, slurmd_timeout_s=slurmd_timeout_s)
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(GRES.format(num_nodes=num_nodes))
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    world = SlurmWorld(folder=folder, num_nodes=num_nodes)
    try:
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        world.start("munged", "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
        world.start("slurmctld", "slurmctld", "-D", "-c")
        for node in world.nodes:
            world.start_node(node)
        world.wait_until_idle()
        yield world
    finally:
        world.close()


def needing_slurm() -> None:
    """Skip the test where no Slurm can be started, saying why; where tests must not be skipped, fail it."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=SEARCHED) is None]
    if not missing and os.geteuid() == 0:
        return
    reason = f"no {', '.join(missing)}: apt-get install slurm-wlm munge" if missing else "nodes need root"
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
