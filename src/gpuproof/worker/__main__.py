"""The node side's one door: `python -m gpuproof.worker run | join | probe | sample | record`.

Also what `python gpuproof-node.pyz …` starts. Each command is a module, imported when it is named.
"""

from __future__ import annotations

import sys
from importlib import import_module

from gpuproof.errors import GpuproofError

COMMANDS = {
    "run": "gpuproof.worker.run:main",
    "join": "gpuproof.worker.attach:join",
    "probe": "gpuproof.worker.probe:main",
    "sample": "gpuproof.worker.sample:main",
    "record": "gpuproof.worker.record:main",
}
USAGE = f"usage: python -m gpuproof.worker {{{' | '.join(COMMANDS)}}} [--help]\n\n{__doc__}"


def main() -> int:
    """Dispatch to a command; its exit code is the process's."""
    words = sys.argv[1:]
    if not words or words[0] not in COMMANDS:
        asked_for_help = words[:1] in (["-h"], ["--help"])
        (sys.stdout if asked_for_help else sys.stderr).write(USAGE)
        return 0 if asked_for_help else 2
    module, _, function = COMMANDS[words[0]].partition(":")
    try:
        return int(getattr(import_module(module), function)(words[1:]))
    except GpuproofError as error:
        sys.stderr.write(f"gpuproof.worker: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
