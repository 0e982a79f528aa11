"""Command lines of the older tools: accepted, or answered with gpuproof's equivalent command.

Scripts with the same names in a checkout forward their arguments, with the script's name as the first
argument.

Commands that only read, measure, or ask before they stop something are accepted. For commands that cost money
or store a secret, only the equivalent command is printed: nothing is launched with values that the user did
not write.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from gpuproof.base.errors import ExitCode, UsageError

Command = TypeVar("Command", bound=Callable[..., Any])
TAKEN: dict[tuple[str, ...], tuple[str, ...]] = {
    ("run_benchmark.py",): ("scale", "--gpu-mode=auto", "--headings"),
    ("run_single_node.sh",): ("run",),
    ("train.py",): ("validate", "--mode=training", "--allow-cpu"),
    ("train_with_monitoring.py",): ("monitor", "exec", "--format=adamwprune"),
    ("gputop.py", "--compare"): ("monitor", "compare"),
    ("gputop.py", "--stats"): ("monitor", "record", "--out"),
    ("gputop.py", "--gen-graph"): ("monitor", "plot"),
    ("gputop.py",): ("monitor", "live"),
    ("visualize_gpu_comparison.py",): ("monitor", "compare", "--plot=gpu_comparison.png"),
    ("generate_gpu_memory_comparison.py",): ("report",),
    ("test", "load"): ("load",),
    ("list-types",): ("cloud", "lambda", "types"),
    ("list-instances",): ("cloud", "lambda", "list"),
    ("cleanup", "terminate"): ("cloud", "lambda", "terminate"),
}
"""Commands of the older tools → ours, followed by the same options; the first match applies."""
EXIT_CODES: Mapping[str, Mapping[int, int]] = {"run_benchmark.py": {ExitCode.UNFIT_ENVIRONMENT: 1}}
"""Script → its former exit codes, if other scripts check them."""
DEPLOYED_BY_DEFAULT = {"--type": "gpu_1x_a100", "--count": "2"}
KEY_FILE = "~/.config/gpuproof/lambda-api-key"
THEIR_KEY = "~/.lambda-deploy/config.json"
STORE_KEY = f"install -D -m 600 /dev/stdin {KEY_FILE}"
ADDRESS = re.compile(r"[0-9.]+|.*[.:].*")
"""Matches an address, but not an instance id, which has neither a dot nor a colon."""


def in_our_words(words: Sequence[str]) -> list[str]:
    """Translate an older tool's command line to gpuproof's; return any other command line unchanged.

    Raises:
        UsageError: the command is known but not translated; the next step is the command to use instead.
    """
    if words[:1] == ["cli.py"]:
        rest = list(words[1:])
        while rest[:1] in (["-v"], ["--verbose"]):  # the group's option there, `load`'s here
            rest = [*rest[1:], "--verbose"] if "load" in rest[1:3] else rest[1:]
        return in_our_words(rest) if rest else ["--help"]
    if tuple(words[:2]) == ("deploy", "cluster"):
        raise UsageError(
            "has a different name here, and commands that cost money have no defaults",
            place="deploy cluster",
            next_step=f"Write `{_deploy(words[2:])}`",
        )
    if tuple(words[:1]) == ("configure",):
        raise UsageError(
            "there is nothing to configure except the key for Lambda's cloud",
            place="configure",
            next_step=f"Store it with `{STORE_KEY}`: paste it (it is in {THEIR_KEY}), then press Ctrl-D",
        )
    for theirs, ours in TAKEN.items():
        if tuple(words[: len(theirs)]) == theirs:
            named = {word.partition("=")[0] for word in words[len(theirs) :]}
            here = ours[:1] if named & {"--resume", "--from"} else ours  # a run keeps its own settings
            click.echo(f"gpuproof: `{' '.join(theirs)}` is `gpuproof {' '.join(here)}` here", err=True)
            return [*here, *words[len(theirs) :]]
    return list(words)


def in_their_codes(words: Sequence[str], code: int) -> int:
    """Return the exit code that callers of the older script expect.

    >>> in_their_codes(["run_benchmark.py"], 5), in_their_codes(["scale"], 5)
    (1, 5)
    """
    return EXIT_CODES.get(words[0], {}).get(code, code) if words else code


def _deploy(words: Sequence[str]) -> str:
    names = {word.partition("=")[0] for word in words}
    defaults = [pair for pair in DEPLOYED_BY_DEFAULT.items() if pair[0] not in names]
    lacking = [part for default in defaults for part in default]
    return shlex.join(["gpuproof", "cloud", "lambda", "deploy", *lacking, *words])


def answered_options(command: Command) -> Command:
    """Add to `load` the options that only lambdactl's version has; each only prints its replacement."""
    for names, answer in _ANSWERS.items():
        option = click.option(
            *names.split(),
            hidden=True,
            expose_value=False,
            default=None,
            callback=_refusing(names, answer),
            help="From lambdactl: prints what to write instead.",
        )
        command = option(command)
    return command


def _refusing(names: str, answer: Callable[[str], str]) -> Callable[..., None]:
    def refuse(_ctx: click.Context, _param: click.Parameter, value: str | bool | None) -> None:
        if value is not None:
            place = names.partition("/")[0]
            raise UsageError("is written differently here", place=place, next_step=answer(str(value)))

    return refuse


def _hosts_file(listed: str) -> str:
    """Return two commands: write instances, given by ID or address, to a file, and use the file."""
    named = [name for name in re.split(r"[,\s]+", listed) if name]
    if all(ADDRESS.fullmatch(name) for name in named):
        content: dict[str, Any] = {"hosts": [{"host": name, "user": "ubuntu"} for name in named]}
    else:
        content = {"instances": [{"instance_ids": [name]} for name in named]}
    wrote = f"echo {shlex.quote(json.dumps(content))} > cluster.json"
    return f"Write `{wrote} && gpuproof load --deployment-file cluster.json`"


def _monitored(wanted: str) -> str:
    if wanted == "True":
        return "Omit it: the monitor runs during every test"
    return "Write `gpuproof run load --monitoring.enabled=false`"


_ANSWERS: dict[str, Callable[[str], str]] = {
    "--instances": _hosts_file,
    "--monitoring-interval": lambda seconds: f"Write `gpuproof load --metrics-sample-rate {seconds}`",
    "--monitoring/--no-monitoring": _monitored,
}
