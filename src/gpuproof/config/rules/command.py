"""Requirements of a command and its template."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuproof.config.matrix import chosen_cases, matrix_keys
from gpuproof.config.rules.base import Facts, Refusal, Refusals, RuleSet
from gpuproof.records.work.command import OUTPUT_DIR, PYTHON, fields_of, fill_template, value_text

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

OF_EACH_LAUNCH = (OUTPUT_DIR, PYTHON, "replicate", "case")
"""Fields that are filled in automatically for every launch."""


def _templates(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield each string in a command that may contain fields, with its key."""
    command = config.command
    yield from (("command.argv", str(word)) for word in command.argv)
    yield from (("command.env", str(value)) for value in command.env.values())
    yield from (("command.cwd", text) for text in (command.cwd,) if text)
    yield from (("command.collect", text) for text in command.collect)
    yield from (("command.metrics", text) for text in (command.metrics,) if text)


def command_has_words(config: RunConfig) -> Refusals:
    """Reject kind command if no command is given."""
    if not config.command.argv:
        yield Refusal(
            keys=("command.argv", "kind"),
            cause="kind is command, but no command is given",
            next_step='Write it as a list: command: [python, train.py, --optimizer, "{optimizer}"]',
        )


def command_has_no_ranks(config: RunConfig) -> Refusals:
    """Reject rank keys and a time limit, which have no effect on a command."""
    for key in config.distributed.changed():
        if key not in ("devices", "hang_timeout_s"):
            yield Refusal(
                keys=(f"distributed.{key}", "kind"),
                cause="has no effect on a command",
                next_step="Pass it to the command in its own arguments, and remove it here",
            )
    if config.run.time_limit_s is not None:
        yield Refusal(
            keys=("run.time_limit_s",),
            cause="it would stop the command together with the process that stores its data",
            next_step="Set command.time_limit_s",
        )


def fields_exist(config: RunConfig) -> Refusals:
    """Reject a template with a field that has no value."""
    fields = [*matrix_keys(config.matrix), *config.cases.fields, *OF_EACH_LAUNCH]
    for key, text in _templates(config):
        for name in fields_of(text):
            if name not in fields:
                yield Refusal(
                    keys=(key, "command"),
                    cause=f"the field {{{name}}} has no value",
                    next_step=f"Fields are {', '.join(fields)}; write {{{{{name}}}}} for literal braces",
                )
    for name in fields_of(config.cases.name or ""):
        if name not in fields or name in OF_EACH_LAUNCH:
            cause = f"a case has no field called {name}"
            of_cases = ", ".join(fields[: -len(OF_EACH_LAUNCH)])
            yield Refusal(keys=("cases.name",), cause=cause, next_step=f"Fields are {of_cases}")


def fields_are_used(config: RunConfig) -> Refusals:
    """Reject a field that the template does not use: all of its cases would run the same command."""
    if not config.command.argv:
        return
    used = {name for _, text in _templates(config) for name in fields_of(text)}
    for section, names in (("matrix", matrix_keys(config.matrix)), ("cases.fields", config.cases.fields)):
        for name in names:
            if name not in used:
                yield Refusal(
                    keys=(f"{section}.{name}", section),
                    cause=f"the command does not use {name}, so changing it has no effect",
                    next_step=f"Write {{{name}}} in the command, or remove it",
                )
    if fixed := [name for name in matrix_keys(config.matrix) if name in config.cases.fields]:
        yield Refusal(
            keys=(f"cases.fields.{fixed[0]}", "cases.fields"),
            cause=f"the matrix varies {fixed[0]}, but it is fixed here",
            next_step=f"Keep one of the two; to run only some values: --filter {fixed[0]}=VALUE",
        )


def cases_write_separate_files(config: RunConfig) -> Refusals:
    """Reject concurrent cases that would write the same files."""
    if config.cases.parallel == 1:
        return
    wanted = [key for key in ("metrics", "collect") if getattr(config.command, key)]
    if wanted and not any(OUTPUT_DIR in fields_of(text) for _, text in _templates(config)):
        yield Refusal(
            keys=("cases.parallel", f"command.{wanted[0]}"),
            cause="concurrent cases would overwrite each other's files in one folder",
            next_step="Have the command write to {output_dir}, or set cases.parallel to 1",
        )


def program_is_there(config: RunConfig, facts: Facts) -> Refusals:
    """Reject a local command whose program does not exist; elsewhere, the launch reports it."""
    if facts.hosts != () or facts.is_attached:
        return
    texts = (value_text(config.command.argv[0]), config.command.cwd or "")
    fields = [{**config.cases.fields, **case} for case in chosen_cases(config)]
    folders = str(config.command.env.get("PATH") or facts.environment.get("PATH", os.defpath))
    for program, folder in dict.fromkeys(
        tuple(fill_template(text, values) for text in texts) for values in fields
    ):
        place = os.path.join(folder, program) if "/" in program else program  # ./x stays ./x
        if not fields_of(program + folder) and shutil.which(place, path=folders) is None:
            cause = f"there is no program {place}, or it is not executable"
            yield Refusal(keys=("command.argv", "command"), cause=cause, next_step="Give its full path")


RULES = RuleSet(
    of_recipe=(
        command_has_words,
        command_has_no_ranks,
        fields_exist,
        fields_are_used,
        cases_write_separate_files,
    ),
    of_place=(program_is_there,),
)
