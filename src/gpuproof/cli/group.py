"""The group of all commands: imports a command when it is used, and accepts older spellings.

For an unknown option, it suggests the nearest option or key, and shows the command that accepts it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click

from gpuproof.base.errors import UsageError

FIRST_SENTENCE = 1000
"""Width in characters that keeps a command's own description from being cut before its first full stop."""
OTHER_OPTIONS = dict.fromkeys(("host", "hosts", "hostfile", "hosts-file", "inventory"), "deployment-file")
"""Option names of other tools → our options."""


class LazyGroup(click.Group):
    """A command group in which each command is a module, imported when used or listed."""

    def __init__(
        self,
        *,
        commands_by_path: dict[str, str],
        summaries: Mapping[str, str] = MappingProxyType({}),
        groups: Mapping[str, Sequence[str]] = MappingProxyType({}),
        older_words: str | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]  # click types its own keywords
        self._paths = commands_by_path
        self._summaries = summaries
        self._groups = groups
        self._older_words = older_words
        """`module:function` that translates arguments matching none of our commands into matching ones."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the command names in table order, which is the order of use."""
        return list(self._paths)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None if there is no command of that name."""
        path = self._paths.get(cmd_name)
        if path is None:
            return None
        command = _imported(path)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by group with summaries, or ungrouped with each command's help text."""
        if not self._summaries:
            listed = [(name, command) for name in self._paths if (command := self.get_command(ctx, name))]
            with formatter.section("Commands"):
                formatter.write_dl(
                    [(name, command.get_short_help_str(FIRST_SENTENCE)) for name, command in listed]
                )
            return
        width = max(map(len, self._summaries))
        for title, names in self._groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), self._summaries[name]) for name in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments refer to, in our own syntax or an older tool's."""
        words = args
        if args[0] not in self._paths and self._older_words is not None:
            words = _imported(self._older_words)(args)
        if words[0] not in self._paths and not words[0].startswith("-") and not ctx.resilient_parsing:
            close = difflib.get_close_matches(words[0], self._paths, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"No such command '{words[0]}'.{hint}")
        return super().resolve_command(ctx, words)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the requested command.

        Raises:
            UsageError: the command has no such option.
        """
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise unknown_option(error.ctx or ctx, error.option_name) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help if no command is given, since that is not a mistake."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)


def _imported(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def refuse_unknown(ctx: click.Context) -> None:
    """Reject the first argument that looks like an option, has no dot and is not a recipe key.

    Raises:
        UsageError: such an argument was found; the next step suggests the nearest option or key.
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
        name: the option, including its dashes.
        keys: common names of a recipe key → the key itself; None if the command accepts no keys.
    """
    word = name.lstrip("-").replace("_", "-").lower()
    verbs: dict[str, list[str]] = {}
    for verb, option in _options_below(ctx.find_root().command, ()):
        verbs.setdefault(option, []).append(verb)
    whose = {option: ", ".join(of[:3]) + " and others" * (len(of) > 3) for option, of in verbs.items()}
    others = {option: f"an option of {of}" for option, of in whose.items()}
    near = {option: f"Perhaps you mean --{option}, {of}" for option, of in others.items()}
    near |= {last.replace("_", "-"): f"Perhaps you mean --{key}=VALUE" for last, key in (keys or {}).items()}
    options = _long_options(ctx.command)
    meant = {option: option for option in options} | {
        word: option for word, option in OTHER_OPTIONS.items() if option in options
    }
    near |= {called: f"Perhaps you mean --{option}" for called, option in meant.items()}
    steps = [near[close] for close in difflib.get_close_matches(word, near, n=1, cutoff=0.7)]
    if name == f"--{word}" and word in others:
        steps = [*(step for step in steps if not step.endswith(others[word])), f"{name} is {others[word]}"]
    program = ctx.find_root().command_path
    cause = f"no such option of {ctx.command_path.removeprefix(program).strip() or program}"
    cause += "" if keys is None else ", nor a recipe key"
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
