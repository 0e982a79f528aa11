"""What several commands share, so that it means the same everywhere: arguments, options, printed lines.

A recipe; a run (its directory, `last`, its number, or how its name begins); where to run, which becomes a
`HostChoice`; limits, JSON and the log. Loads nothing heavy: reading what is named is for the launcher's site.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuproof.base.outside import plain
from gpuproof.base.redaction import redacted
from gpuproof.launchers.registry import LAUNCHERS, LOCAL, chosen_hosts, options_of_launchers

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


RESULTS = Path("results")
YAML = (".yaml", ".yml")
SINGLE_DASH_KEY = re.compile(r"-[a-z_]+(\.\w+)+(=.*)?", re.DOTALL)
SINGLE_DASH_WORD = re.compile(r"-[a-z][a-z-]{2,}(=.*)?", re.DOTALL)
Command = TypeVar("Command", bound=Callable[..., Any])
HEADINGS = "gpuproof.headings"
"""In the meta of a command that names the runs under their batch size."""
VERBOSE = "gpuproof.verbose"


class RunName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """Turn a short name into the run's directory; other words are paths as they stand."""

    name = "run"

    def convert(self, value: Any, _param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Look among the runs of --save-dir, where the command has it, else of `results`."""
        from gpuproof.store.names import find_run

        return find_run(str(value), _save_dir(ctx))

    def shell_complete(
        self, ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer `last`, the names of runs, and what is on the disk."""
        from click.shell_completion import CompletionItem

        from gpuproof.store.run import list_runs

        names = ["last", *(run.root.name for run in list_runs(_save_dir(ctx)))]
        items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return items or [CompletionItem(incomplete, type="file")]


def _save_dir(ctx: click.Context | None) -> Path:
    folder = ctx.params.get("save_dir") if ctx is not None else None
    return RESULTS if folder is None else Path(folder)


def complete_recipe(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the recipes that come with gpuproof, and the YAML files and folders that begin like this."""
    from click.shell_completion import CompletionItem

    from gpuproof.config.load import recipe_names

    recipes = [CompletionItem(name) for name in recipe_names() if name.startswith(incomplete)]
    above = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    beside = sorted(above.iterdir()) if above.is_dir() else []
    wanted = [path for path in beside if path.suffix in YAML or path.is_dir()]
    paths = [f"{path}/" if path.is_dir() else str(path) for path in wanted]
    return [*recipes, *(CompletionItem(path) for path in paths if path.startswith(incomplete))]


class ConfigCommand(click.Command):
    """A command that takes keys of a recipe as `--section.key=value`, and completes them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Look at each word before click takes it apart, and at those that are no options of this command.

        Raises:
            click.UsageError: a key or a word stands behind one dash; click would read its letters.
            UsageError: a word is written as an option, and is neither one nor a key of a recipe.
        """
        for word in args[: args.index("--")] if "--" in args else args:
            if SINGLE_DASH_KEY.fullmatch(word):
                raise click.UsageError(f"{word}: a key of the config has two dashes: -{word}", ctx)
            if SINGLE_DASH_WORD.fullmatch(word):
                raise click.UsageError(f"{word}: an option of several letters has two dashes: -{word}", ctx)
        left = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            from gpuproof.cli.group import refuse_unknown

            refuse_unknown(ctx)
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of where to run in a section of their own."""
        write_options(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer the options, and every key, each up to its `=`."""
        items = super().shell_complete(ctx, incomplete)
        if not incomplete.startswith("-"):
            return items
        from click.shell_completion import CompletionItem

        from gpuproof.config.keys import all_keys
        from gpuproof.config.settings import dotted

        keys = {f"--{dotted(path)}=": key.description for path, key in all_keys().items()}
        words = [word for word in keys if word.startswith(incomplete)]
        return [*items, *(CompletionItem(word, help=keys[word]) for word in words)]


def refuse_dry_resume(*, dry_run: bool) -> None:
    """Refuse `--dry-run` beside `--resume`, which would launch all the same.

    Raises:
        UsageError: both are given.
    """
    if dry_run:
        from gpuproof.base.errors import UsageError

        raise UsageError(
            "a resumed run goes on with what is left of it, which --dry-run does not show",
            place="--resume",
            next_step="Leave --dry-run out; launch.txt of its launches has the commands",
        )


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, and it alone, on standard output."
)


def say(text: str, *, err: bool = False) -> None:
    """Print a line with words of hosts, providers or files in it: nothing of it is obeyed by a terminal."""
    click.echo(redacted(plain(text)), err=err)


class PlainFormatter(logging.Formatter):
    """Writes log lines of which a terminal obeys nothing."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return redacted(plain(super().format(record)))


def print_json(content: Any) -> None:
    """Print records, or what JSON has, on standard output."""
    import json

    from gpuproof.records.codec import to_json

    click.echo(json.dumps(to_json(content), indent=2, allow_nan=False))


_MEASURING = (
    click.option("--timeout", metavar="SECONDS", help="Time that one launch may take (run.time_limit_s)."),
    click.option("--python", metavar="PATH", help="Run the ranks with this Python, which needs torch only."),
    click.option("--resume", type=RunName(), metavar="RUN", help="Finish an interrupted run."),
    click.option("--retry-failed", is_flag=True, help="With --resume: launch again what failed, too."),
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Say what would run, and start nothing; the commands with --verbose."
)


def measuring_options(command: Command) -> Command:
    """Add what every command that measures takes: limits, where to run, resuming, JSON, the log."""
    wrapped = host_options(json_option(log_options(command)))
    for option in reversed(_MEASURING):
        wrapped = option(wrapped)
    return wrapped


def verbose_option(command: Command, *, text: str = "Print the whole page, not one screen of it.") -> Command:
    """Add --verbose, which `is_verbose` reads."""

    def note(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        ctx.meta[VERBOSE] = value

    option = click.option("--verbose", "-v", is_flag=True, expose_value=False, callback=note, help=text)
    return option(command)


def is_verbose() -> bool:
    """Say whether the command that runs was asked for all that there is to print."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(VERBOSE))


def log_options(command: Command) -> Command:
    """Add --log-file and --verbose; the log takes every detail, whatever the terminal shows."""

    @click.option(
        "--log-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write a log with every detail.",
    )
    @partial(verbose_option, text="Print the whole page, and on standard error what is being done.")
    @wraps(command)
    def logged(*args: Any, log_file: Path | None, **kwargs: Any) -> Any:
        start_logging(log_file, verbose=is_verbose())
        return command(*args, **kwargs)

    return logged  # type: ignore[return-value]  # click's decorators keep the command's type


def start_logging(log_file: Path | None, *, verbose: bool) -> None:
    """Let the logger pass everything and the handlers choose: the file DEBUG, the terminal INFO.

    Raises:
        click.BadParameter: the log file cannot be written.
    """
    logger = logging.getLogger("gpuproof")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    if log_file is not None:
        try:
            handler: logging.Handler = logging.FileHandler(log_file, encoding="utf-8")
        except OSError as error:
            raise click.BadParameter(f"{log_file}: {error.strerror}", param_hint="--log-file") from error
        handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    if verbose:
        terminal = logging.StreamHandler(sys.stderr)
        terminal.setLevel(logging.INFO)
        terminal.setFormatter(PlainFormatter())
        logger.addHandler(terminal)


class PlaceOption(click.Option):
    """An option that says where to run."""


class PlacedCommand(click.Command):
    """A command whose help has the options of where to run in a section of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both sections."""
        write_options(ctx, formatter)


def write_options(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the section of a command's options, and that of where to run if it has such."""
    sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Where to run": []}
    for param in ctx.command.get_params(ctx):
        if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None:
            sections["Where to run" if isinstance(param, PlaceOption) else "Options"].append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def _places_to_run() -> str:
    by_file = {
        use: [name for name, entry in LAUNCHERS.items() if entry.file == use]
        for use in ("required", "optional")
    }
    hosts = [f"{name}:FILE" for name in by_file["required"]]
    options = " or ".join(f"{name}:FILE" for name in by_file["optional"])
    places = ", ".join([f"{LOCAL} (this machine)", *hosts, *by_file["optional"]])
    return f"Where to run: {places}, or {options} (with options in YAML)."


_ON = click.option("--on", cls=PlaceOption, metavar="WHERE", default=LOCAL, help=_places_to_run())
_ONE_JOB = click.option(
    "--one-job",
    cls=PlaceOption,
    is_flag=True,
    help="One job over all hosts instead of one on each (distributed.nodes).",
)


def host_options(command: Command) -> Command:
    """Add the options; the command gets them as `hosts`, a HostChoice."""
    options = options_of_launchers()

    @wraps(command)
    def on_hosts(*args: Any, on: str, one_job: bool, **kwargs: Any) -> Any:
        values = {name: kwargs.pop(name) for name in options}
        return command(*args, hosts=chosen_hosts(on, values, one_job=one_job), **kwargs)

    wrapped = _ONE_JOB(on_hosts)
    for name, (option, keywords) in reversed(options.items()):
        wrapped = click.option(option, name, cls=PlaceOption, **keywords)(wrapped)
    return _ON(wrapped)  # type: ignore[return-value]  # click's decorators keep the command's type
