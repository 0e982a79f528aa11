"""Arguments, options and output that commands share, so that they work the same everywhere.

Covers recipes; runs (by directory, `last`, number, or a prefix of the name); where to run, which becomes a
`HostChoice`; limits, JSON and the log. Loads nothing heavy: files given in options are read by the launcher's
site.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuproof.base.outside import plain
from gpuproof.base.redaction import redacted
from gpuproof.launchers.registry import (
    LAUNCHERS,
    LOCAL,
    chosen_hosts,
    file_options,
    options_of_launchers,
)

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


RESULTS = Path("results")
YAML = (".yaml", ".yml")
SINGLE_DASH_KEY = re.compile(r"-[a-z_]+(\.\w+)+(=.*)?", re.DOTALL)
SINGLE_DASH_WORD = re.compile(r"-[a-z][a-z-]{2,}(=.*)?", re.DOTALL)
Command = TypeVar("Command", bound=Callable[..., Any])
HEADINGS = "gpuproof.headings"
"""Key set in click's metadata by a command that lists the runs under their batch size."""
VERBOSE = "gpuproof.verbose"


class RunName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5 only
    """Resolve a short name to the run's directory; other values are paths and stay unchanged."""

    name = "run"

    def convert(self, value: Any, _param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Search the runs in --save-dir if the command has that option, or else those in `results`."""
        from gpuproof.store.names import find_run

        return find_run(str(value), _save_dir(ctx))

    def shell_complete(
        self, ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete `last`, run names, and paths on disk."""
        from click.shell_completion import CompletionItem

        from gpuproof.store.run import list_runs

        names = ["last", *(run.root.name for run in list_runs(_save_dir(ctx)))]
        items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return items or [CompletionItem(incomplete, type="file")]


def _save_dir(ctx: click.Context | None) -> Path:
    folder = ctx.params.get("save_dir") if ctx is not None else None
    return RESULTS if folder is None else Path(folder)


def complete_recipe(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return completions: recipes built into gpuproof, and YAML files and folders with this prefix."""
    from click.shell_completion import CompletionItem

    from gpuproof.config.load import recipe_names

    recipes = [CompletionItem(name) for name in recipe_names() if name.startswith(incomplete)]
    above = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    beside = sorted(above.iterdir()) if above.is_dir() else []
    wanted = [path for path in beside if path.suffix in YAML or path.is_dir()]
    paths = [f"{path}/" if path.is_dir() else str(path) for path in wanted]
    return [*recipes, *(CompletionItem(path) for path in paths if path.startswith(incomplete))]


class ConfigCommand(click.Command):
    """A command that accepts recipe keys as `--section.key=value`, and completes them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Check each argument before click parses it, then the arguments that are not options here.

        Raises:
            click.UsageError: a key or a long option has only one leading dash; click would read its letters
            as options.
            UsageError: an argument looks like an option, but is neither an option nor a recipe key.
        """
        for word in args[: args.index("--")] if "--" in args else args:
            if SINGLE_DASH_KEY.fullmatch(word):
                raise click.UsageError(f"{word}: a config key takes two dashes: -{word}", ctx)
            if SINGLE_DASH_WORD.fullmatch(word):
                raise click.UsageError(f"{word}: an option of several letters takes two dashes: -{word}", ctx)
        left = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            from gpuproof.cli.group import refuse_unknown

            refuse_unknown(ctx)
        return left

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, with those that specify where to run in a separate section."""
        write_options(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the options and every key, each up to its `=`."""
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
    """Reject `--dry-run` together with `--resume`, which would start launches anyway.

    Raises:
        UsageError: both options are given.
    """
    if dry_run:
        from gpuproof.base.errors import UsageError

        raise UsageError(
            "a resumed run continues with the remaining work, which --dry-run does not show",
            place="--resume",
            next_step="Omit --dry-run; launch.txt of its launches has the commands",
        )


OF_EVERY_RESUMED = (
    "resume",
    "retry_failed",
    "python",
    "as_json",
    "log_file",
    "verbose",
    "dry_run",
    "overrides",
)
"""Parameters that apply to a resumed run, or are checked elsewhere."""


def refuse_unread(place: str, *, read: Collection[str]) -> None:
    """Reject options of the running command that `place` leaves without effect: all except `read`.

    Raises:
        UsageError: such an option is on the command line.
    """
    from click.core import ParameterSource

    from gpuproof.base.errors import UsageError

    ctx = click.get_current_context()
    for param in ctx.command.params:
        source = ctx.get_parameter_source(str(param.name))
        if param.name not in read and source is ParameterSource.COMMANDLINE:
            option = max(param.opts, key=len) if isinstance(param, click.Option) else "every --KEY=VALUE"
            raise UsageError(
                f"the run keeps its own settings, so {option} would have no effect",
                place=place,
                next_step=f"Omit {option}, or start a new run",
            )


def refuse_settings_of_resumed(*, read: Collection[str] = ()) -> None:
    """Reject options that define what to measure, since a resumed run already has them.

    Where to run is checked when the run's site is opened.

    Raises:
        UsageError: such an option is on the command line.
    """
    params = click.get_current_context().command.params
    places = [str(param.name) for param in params if isinstance(param, PlaceOption)]
    refuse_unread("--resume", read=(*OF_EVERY_RESUMED, *places, *read))


json_option = click.option("--json", "as_json", is_flag=True, help="Print only JSON on standard output.")


def say(text: str, *, err: bool = False) -> None:
    """Print a line with text from hosts, providers or files, without terminal control sequences."""
    click.echo(redacted(plain(text)), err=err)


class PlainFormatter(logging.Formatter):
    """Writes log lines without control sequences that a terminal would interpret."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return redacted(plain(super().format(record)))


def print_json(content: Any) -> None:
    """Print records on standard output, as text or as JSON."""
    import json

    from gpuproof.records.codec import to_json

    click.echo(json.dumps(to_json(content), indent=2, allow_nan=False))


_MEASURING = (
    click.option("--timeout", metavar="SECONDS", help="Time limit per launch (run.time_limit_s)."),
    click.option("--python", metavar="PATH", help="Run the ranks with this Python; only torch is required."),
    click.option("--resume", type=RunName(), metavar="RUN", help="Finish an interrupted run."),
    click.option("--retry-failed", is_flag=True, help="With --resume: also rerun failed launches."),
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would run without starting it; --verbose adds the commands."
)


def measuring_options(command: Command) -> Command:
    """Add the options shared by all measuring commands: limits, where to run, resuming, JSON, log."""

    @wraps(command)
    def checked(*args: Any, **options: Any) -> Any:
        if options.get("retry_failed") and not options.get("resume"):
            from gpuproof.base.errors import UsageError

            raise UsageError("no run is resumed", place="--retry-failed", next_step="Add --resume RUN")
        return command(*args, **options)

    wrapped = host_options(json_option(log_options(checked)))
    for option in reversed(_MEASURING):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]  # click's decorators keep the command's type


def verbose_option(command: Command, *, text: str = "Print the full page rather than one screen.") -> Command:
    """Add --verbose, which is queried with `is_verbose`."""

    def note(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
        ctx.meta[VERBOSE] = value

    option = click.option("--verbose", "-v", is_flag=True, expose_value=False, callback=note, help=text)
    return option(command)


def is_verbose() -> bool:
    """Return whether the running command was asked to print everything."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(VERBOSE))


def log_options(command: Command) -> Command:
    """Add --log-file and --verbose; the log file contains every detail, whatever the terminal shows."""

    @click.option(
        "--log-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write a detailed log.",
    )
    @partial(verbose_option, text="Print the full page, with progress on standard error.")
    @wraps(command)
    def logged(*args: Any, log_file: Path | None, **kwargs: Any) -> Any:
        start_logging(log_file, verbose=is_verbose())
        return command(*args, **kwargs)

    return logged  # type: ignore[return-value]  # click's decorators keep the command's type


def start_logging(log_file: Path | None, *, verbose: bool) -> None:
    """Let the logger pass all messages; handlers filter (DEBUG for the file, INFO for the terminal).

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
    """An option that specifies where to run."""


class PlacedCommand(click.Command):
    """A command that lists the options for where to run in a separate section of its help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both sections."""
        write_options(ctx, formatter)


def write_options(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write the section with a command's options and, if there are any, the section for where to run."""
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
    help="Run one job across all hosts instead of one per host (distributed.nodes).",
)


def _refuse_without_hosts(options: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
    """Reject options of hosts if none are named: the command would run on this machine.

    Raises:
        UsageError: such an option is on the command line.
    """
    from click.core import ParameterSource

    from gpuproof.base.errors import UsageError

    ctx = click.get_current_context()
    for name, (option, _) in options.items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(
                "no hosts are named, so this would run on this machine",
                place=option,
                next_step=f"Name them with {file_options()} or --on, or omit {option}",
            )


def host_options(command: Command) -> Command:
    """Add the options; the command gets them as `hosts`, a HostChoice."""
    options = options_of_launchers()

    @wraps(command)
    def on_hosts(*args: Any, on: str, one_job: bool, **kwargs: Any) -> Any:
        values = {name: kwargs.pop(name) for name in options}
        hosts = chosen_hosts(on, values, one_job=one_job)
        if hosts.launcher == LOCAL and not any(kwargs.get(name) for name in ("resume", "rerun_dir")):
            _refuse_without_hosts(options)
        return command(*args, hosts=hosts, **kwargs)

    wrapped = _ONE_JOB(on_hosts)
    for name, (option, keywords) in reversed(options.items()):
        wrapped = click.option(option, name, cls=PlaceOption, **keywords)(wrapped)
    return _ON(wrapped)  # type: ignore[return-value]  # click's decorators keep the command's type
