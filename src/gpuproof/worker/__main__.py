"""The only entry point on the node side: `python -m gpuproof.worker COMMAND`: `run`, `probe` etc.

`python gpuproof-node.pyz …` starts it too. Each command is a module, imported on demand.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules

from gpuproof.base.errors import ExitCode, GpuproofError
from gpuproof.worker import launched

COMMANDS = {
    "run": ("gpuproof.worker.rank.assignment:main", "measure one rank of a case, for a launcher"),
    "join": ("gpuproof.worker.commands.attach:join", "the same for a rank started by your own launcher"),
    "follow": (
        "gpuproof.worker.commands.follow:follow",
        "the same for one case after another, until rank 0 has none left",
    ),
    "dismiss": ("gpuproof.worker.commands.attach:dismiss", "tell the following ranks that the run is over"),
    "serve-cases": (
        "gpuproof.worker.commands.serve_cases:main",
        "fork a process for each case, with torch imported",
    ),
    "probe": ("gpuproof.worker.commands.probe:main", "print this machine's hardware and software, as JSON"),
    "sample": ("gpuproof.worker.commands.sample:main", "print readings of GPUs and host, as JSON Lines"),
    "generate": ("gpuproof.worker.serving.generator:main", "issue requests for a serving case"),
    "client": ("gpuproof.worker.serving.clients:main", "send a part of a case's requests to an endpoint"),
    "twin": ("gpuproof.worker.serving.twin:main", "answer requests as instructed, in place of an endpoint"),
    "record": (
        "gpuproof.worker.commands.record:main",
        "write readings to a file, during a command or until Ctrl-C",
    ),
}
USAGE = """usage: python -m gpuproof.worker COMMAND [--help]

{}

The same commands from one file, on a machine with Python and without gpuproof:
  python3 gpuproof-node.pyz record -- python train.py
"""


def launched_commands() -> dict[str, str]:
    """Return the commands that launchers start on other hosts, by name (modules of `launched`)."""
    modules = [module.name for module in iter_modules(launched.__path__)]
    return {module.replace("_", "-"): f"{launched.__name__}.{module}:main" for module in modules}


def usage() -> str:
    """Return the commands, one per line."""
    summaries = {word: summary for word, (_, summary) in COMMANDS.items()}
    for word, path in launched_commands().items():
        summaries[word] = import_module(path.partition(":")[0]).SUMMARY
    return USAGE.format("\n".join(f"  {word:<18}{summary}" for word, summary in summaries.items()))


def main() -> int:
    """Dispatch to a command and exit with its exit code."""
    words = sys.argv[1:]
    if words and (words[0] in COMMANDS or words[0] in launched_commands()):
        return run_command(words)
    wants_help = words[:1] in (["-h"], ["--help"])
    (sys.stdout if wants_help else sys.stderr).write(usage())
    return 0 if wants_help else 2


def run_command(words: Sequence[str]) -> int:
    """Run the command given by the first argument, passing on the others; return its exit code."""
    path = COMMANDS[words[0]][0] if words[0] in COMMANDS else launched_commands()[words[0]]
    module, _, function = path.partition(":")
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
