"""The one entry point of the node side: `python -m gpuproof.worker COMMAND`, `run` and `probe` among them.

Also what `python gpuproof-node.pyz …` starts. Each command is a module, imported when it is named.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from gpuproof.errors import ExitCode, GpuproofError

COMMANDS = {
    "run": ("gpuproof.worker.commands.run:main", "measure one rank of a case, as a launcher asks for it"),
    "join": ("gpuproof.worker.commands.attach:join", "the same for a rank that your own launcher started"),
    "follow": (
        "gpuproof.worker.commands.follow:follow",
        "the same for one case after the other, until rank 0 has no more",
    ),
    "dismiss": ("gpuproof.worker.commands.attach:dismiss", "tell the ranks that follow that it is over"),
    "serve-cases": (
        "gpuproof.worker.commands.serve_cases:main",
        "fork a process for each case, with torch imported",
    ),
    "probe": ("gpuproof.worker.commands.probe:main", "print what this machine has, as JSON"),
    "sample": ("gpuproof.worker.commands.sample:main", "print readings of GPUs and host, as JSON Lines"),
    "generate": ("gpuproof.worker.serving.generator:main", "issue requests, as a serving case asks"),
    "record": (
        "gpuproof.worker.commands.record:main",
        "write readings to a file, beside a command or until Ctrl-C",
    ),
    "slurm-task": ("gpuproof.worker.commands.slurm_task:main", "start a node's ranks in a job of Slurm's"),
    "kubernetes-task": (
        "gpuproof.worker.commands.kubernetes_task:main",
        "start a pod's ranks, or end them",
    ),
    "kubernetes-files": (
        "gpuproof.worker.commands.kubernetes_files:main",
        "keep a pod's files, and send them",
    ),
    "remote-agent": (
        "gpuproof.worker.commands.remote_agent:main",
        "serve a gpuproof on another host, over SSH",
    ),
}
_LISTED = "\n".join(f"  {name:<18}{what}" for name, (_, what) in COMMANDS.items())
USAGE = f"""usage: python -m gpuproof.worker COMMAND [--help]

{_LISTED}

The same commands from one file, on a machine with Python and without gpuproof:
  python3 gpuproof-node.pyz record -- python train.py
"""


def main() -> int:
    """Dispatch to a command; its exit code is the process's."""
    words = sys.argv[1:]
    if not words or words[0] not in COMMANDS:
        asked_for_help = words[:1] in (["-h"], ["--help"])
        (sys.stdout if asked_for_help else sys.stderr).write(USAGE)
        return 0 if asked_for_help else 2
    return run_command(words)


def run_command(words: Sequence[str]) -> int:
    """Run the command that the first word names with the others; return its exit code."""
    module, _, function = COMMANDS[words[0]][0].partition(":")
    try:
        return int(getattr(import_module(module), function)(words[1:]))
    except GpuproofError as error:
        sys.stderr.write(f"gpuproof.worker: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(f"gpuproof.worker: {words[0]}: interrupted\n")
        return ExitCode.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
