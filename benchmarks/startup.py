"""How much slower is `gpuproof --help` than Python importing only click? Budget: 5 times.

Also lists the modules that the help must not import, and whether it imported any.
"""

from __future__ import annotations

import argparse
import json

from pairing import judge_ratios, machine_line, palindromes, ratios
from timed_commands import gpuproof, python, timed

BUDGET = 5.0
HEAVY = ("torch", "numpy", "scipy", "pydantic", "ruamel", "rich", "sklearn", "psutil", "pynvml")
BARE = python("-c", "import click")
COMMANDS = {"click": BARE, "help": gpuproof("--help"), "click again": BARE}
MODULES_OF_HELP = """
import atexit, json, sys
atexit.register(lambda: print("\\n" + json.dumps(sorted(sys.modules))))
sys.argv = ["gpuproof", "--help"]
from gpuproof.cli.main import main
main()
"""


def main() -> None:
    """Time both commands, interleaved, and check what was imported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 blocks instead of 20")
    options = parser.parse_args()
    print(machine_line())
    for command in COMMANDS.values():
        timed(command)  # the first start reads files from disk
    blocks = [
        [(side, timed(COMMANDS[side]).wall_s) for side in order]
        for order in palindromes(list(COMMANDS), num_blocks=4 if options.quick else 20)
    ]
    judgement = judge_ratios(
        "gpuproof --help relative to python -c 'import click'",
        ratios(blocks, "help", base="click"),
        noise_values=ratios(blocks, "click again", base="click"),
        budget=BUDGET,
    )
    print("\n".join(judgement.lines()))
    imported = heavy_modules_of_help()
    print(f"heavy modules imported by --help: {', '.join(imported) or 'none'} (of {', '.join(HEAVY)})")


def heavy_modules_of_help() -> list[str]:
    """Return the names of the heavy modules in memory after the help was printed."""
    loaded = json.loads(timed(python("-c", MODULES_OF_HELP)).output.splitlines()[-1])
    return [name for name in HEAVY if name in loaded]


if __name__ == "__main__":
    main()
