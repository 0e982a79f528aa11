"""What is said of an option that a command does not have: the nearest option or key, and whose it is."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import click

from gpuproof.base.errors import UsageError

OTHER_OPTIONS = dict.fromkeys(("host", "hosts", "hostfile", "hosts-file", "inventory"), "deployment-file")
"""What other tools call an option, and the option."""


def refuse_unknown(ctx: click.Context) -> None:
    """Refuse the first argument that is written as an option, has no dot and is no key of a recipe.

    Raises:
        UsageError: there is one; the next step is the nearest option or key.
    """
    names = [word.removeprefix("--").partition("=")[0] for word in _arguments(ctx) if word.startswith("--")]
    undotted = [name for name in names if name and "." not in name]
    if not undotted:
        return
    from gpuproof.config.keys import OTHER_WORDS, keys_below, keys_by_last_name

    sections = keys_below(())
    for name in undotted:
        if name not in sections:
            raise unknown_option(ctx, f"--{name}", keys={**keys_by_last_name(), **OTHER_WORDS})


def _arguments(ctx: click.Context) -> Iterator[str]:
    for param in ctx.command.params:
        value = ctx.params.get(str(param.name)) if isinstance(param, click.Argument) else None
        yield from [value] if isinstance(value, str) else value or ()


def unknown_option(ctx: click.Context, name: str, *, keys: dict[str, str] | None = None) -> UsageError:
    """Return the error for an option that the command of `ctx` does not have.

    Args:
        ctx: the command.
        name: the option with its dashes.
        keys: what people call a key of a recipe → that key; None where the command takes no keys.
    """
    word = name.lstrip("-").replace("_", "-").lower()
    verbs: dict[str, list[str]] = {}
    for verb, option in _options_below(ctx.find_root().command, ()):
        verbs.setdefault(option, []).append(verb)
    whose = {option: ", ".join(of[:3]) + " and others" * (len(of) > 3) for option, of in verbs.items()}
    others = {option: f"an option of {of}" for option, of in whose.items()}
    near = {option: f"Perhaps --{option} is meant, {of}" for option, of in others.items()}
    near |= {last.replace("_", "-"): f"Perhaps --{key}=VALUE is meant" for last, key in (keys or {}).items()}
    options = _long_options(ctx.command)
    meant = {option: option for option in options} | {
        word: option for word, option in OTHER_OPTIONS.items() if option in options
    }
    near |= {called: f"Perhaps --{option} is meant" for called, option in meant.items()}
    steps = [near[close] for close in difflib.get_close_matches(word, near, n=1, cutoff=0.7)]
    if name == f"--{word}" and word in others:
        steps = [*(step for step in steps if not step.endswith(others[word])), f"{name} is {others[word]}"]
    cause = "no such option of " + ctx.command_path.partition(" ")[2]
    cause += "" if keys is None else ", and no such key of a recipe"
    return UsageError(cause, place=name, next_step="; ".join(steps) or f"See {ctx.command_path} --help")


def _options_below(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield each command below a group with each of its options."""
    if not isinstance(command, click.Group):
        yield from ((" ".join(path), option) for option in _long_options(command))
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        if (below := command.get_command(context, name)) is not None:
            yield from _options_below(below, (*path, name))


def _long_options(command: click.Command) -> list[str]:
    shown = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    return [flag.removeprefix("--") for param in shown for flag in param.opts if flag.startswith("--")]
