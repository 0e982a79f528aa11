"""The group of all commands: a command is imported when it is named, and older spellings are understood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click

FIRST_SENTENCE = 1000
"""Characters: what a command says of itself is not cut before its first full stop."""


class LazyGroup(click.Group):
    """A group whose commands are modules, imported when they are named or listed."""

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
        """`module:function` that puts words which name no command into ours."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order of the table, which is the order of use."""
        return list(self._paths)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None where there is none of that name."""
        path = self._paths.get(cmd_name)
        if path is None:
            return None
        command = _imported(path)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in groups by their summaries; without those, by what each says of itself."""
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
        """Find the command that the words name, in our words or in those of an older tool."""
        words = args
        if args[0] not in self._paths and self._older_words is not None:
            words = _imported(self._older_words)(args)
        if words[0] not in self._paths and not words[0].startswith("-") and not ctx.resilient_parsing:
            import difflib  # only after a mistake

            close = difflib.get_close_matches(words[0], self._paths, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"No such command '{words[0]}'.{hint}")
        return super().resolve_command(ctx, words)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that is named.

        Raises:
            UsageError: it has no such option.
        """
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            from gpuproof.cli.entry.unknown import unknown_option

            raise unknown_option(error.ctx or ctx, error.option_name) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help where nothing is asked for: that is no mistake."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, args)


def _imported(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
