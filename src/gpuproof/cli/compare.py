"""`gpuproof compare`: two finished runs, or two configurations with interleaved launches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.base.redaction import typed_command
from gpuproof.cli.options import (
    ConfigCommand,
    RunName,
    log_options,
    refuse_dry_resume,
    refuse_settings_of_resumed,
)
from gpuproof.cli.report import chosen_format, report_options, save_dir_option, write_report

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

SUITE, SIDES = "ab", ("a", "b")
OF_LAUNCHES = ("find", "max_pairs", "timeout", "python", "retry_failed", "dry_run")
NOT_DIFFERENCES = ("run", "suite", "suite_options")
"""Keys that may differ between configurations: names, locations, and the number of repeats."""


class PartOfOne(click.ParamType[float]):
    """A fraction, written as 2% or 0.02."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a fraction; a plain number of 1 or more is rejected, since it may mean per cent."""
        text = str(value).strip()
        try:
            number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is not a fraction, such as 2% or 0.02", param, ctx)
        if not 0 <= number < 1:
            self.fail(f"{value!r} is not in [0, 1); 2 per cent is 2% or 0.02", param, ctx)
        return number


@click.command(cls=ConfigCommand, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="A B [--KEY.SUBKEY=VALUE]...")
@click.option("--ab", is_flag=True, help="A and B are configurations: interleave their launches and compare.")
@click.option(
    "--aa",
    is_flag=True,
    help="A is one configuration: compare it with itself in interleaved launches, to test the comparison.",
)
@click.option(
    "--across",
    multiple=True,
    metavar="KEY",
    help="Without --ab: key that differs intentionally, such as stack; may be repeated.",
)
@click.option(
    "--max-regression",
    type=PartOfOne(),
    metavar="SHARE",
    help=(
        "Exit with 3 if a whole confidence interval is beyond this regression (2% or 0.02), with 4 if "
        "the result is inconclusive."
    ),
)
@click.option(
    "--between-sessions",
    type=PartOfOne(),
    metavar="SHARE",
    help="Without --ab: relative standard deviation of the results between sessions; it is "
    "included in each interval [default: 1%].",
)
@click.option(
    "--find",
    type=PartOfOne(),
    metavar="SHARE",
    help="With --ab: smallest regression to detect, which sets the number of launches [default: 3%].",
)
@click.option("--max-pairs", metavar="N", help="With --ab: maximum number of launch pairs [default: 60].")
@click.option("--timeout", metavar="SECONDS", help="With --ab: maximum time per launch.")
@click.option("--python", metavar="PATH", help="With --ab: run the ranks with this Python.")
@click.option("--resume", type=RunName(), metavar="RUN", help="Finish an interrupted --ab run.")
@click.option("--retry-failed", is_flag=True, help="With --resume: also rerun failed launches.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="With --ab: show what would run without starting it; --verbose also prints the commands.",
)
@report_options(formats="terminal, markdown, html, json, csv or junit.")
@save_dir_option
@log_options
@click.pass_context
def compare(ctx: click.Context, /, *, ab: bool, aa: bool, **options: Any) -> None:
    """Report whether run B is faster or slower than run A.

    A and B are run directories, or `last`; nothing is launched. Runs with different settings are rejected,
    and the keys that differ are listed. With --ab, A and B are recipes, or A is the only recipe and
    --a.KEY=VALUE or --b.KEY=VALUE define the difference. Launches of A and B are interleaved on this machine,
    with enough launches to detect a regression of --find; with --max-regression, a detected regression is
    confirmed with the same number of new launches. A side that is INVALID, or SUSPECT for a reason that
    affects the difference, cannot win: the verdict is then "cannot tell".

    \b
    gpuproof compare results/quick/before results/quick/after
    gpuproof compare results/quick/fp32 last --across training.precision
    gpuproof compare results/main/run_1 results/main/run_2 --max-regression 2%
    gpuproof compare --ab before.yaml after.yaml --max-regression 0%
    gpuproof compare --ab quick --b.training.precision=bf16
    gpuproof compare --ab serving.yaml --a.serving.endpoint.url=http://old:8000/v1 --b.serving.endpoint.url=http://new:8000/v1
    gpuproof compare --aa quick

    Exit code 0 for a conclusive result, 3 for a regression, 4 for an inconclusive result.
    """  # noqa: D301  # click reads the backspace character
    is_launched = ab or aa or bool(options["resume"])
    _refuse_unused(options, is_launched=is_launched, is_both=ab and aa)
    if not is_launched:
        ctx.exit(_compare_runs(**options))
    if ctx.get_parameter_source("save_dir") is ParameterSource.DEFAULT:
        options["save_dir"] = None
    ctx.exit(_launch(is_same=aa, **options))


def _refuse_unused(options: Mapping[str, Any], *, is_launched: bool, is_both: bool) -> None:
    """Refuse options that would have no effect.

    Raises:
        UsageError: `--ab` and `--aa` are both given, or an option of launches, or of finished runs.
    """
    if is_both:
        raise UsageError(
            "A and B are either compared or the same", place="--aa", next_step="Omit --ab or --aa"
        )
    useless = [name for name in OF_LAUNCHES if options[name] not in (None, False)]
    if useless and not is_launched:
        option = f"--{useless[0].replace('_', '-')}"
        raise UsageError(
            "two finished runs are compared, and nothing is launched",
            place=option,
            next_step=f"Omit {option}, or compare recipes with --ab",
        )
    of_finished_runs = any(options[name] for name in ("across", "form", "output"))
    if is_launched and (of_finished_runs or options["between_sessions"] is not None):
        raise UsageError(
            "--across, --between-sessions, --format and --output are for two finished runs",
            place="--ab, --aa or --resume",
            next_step="Omit them; `gpuproof report RUN --format FORMAT` writes its report",
        )


def _launch(
    *,
    words: tuple[str, ...],
    is_same: bool,
    max_regression: float | None,
    find: float | None,
    max_pairs: str | None,
    timeout: str | None,
    python: str | None,
    resume: Path | None,
    retry_failed: bool,
    dry_run: bool,
    save_dir: Path | None,
    as_json: bool,
    **_of_finished_runs: Any,
) -> ExitCode:
    """Launch two configurations interleaved, or finish such a run; `save_dir` is None if not given."""
    from gpuproof.cli.measuring import begin_run, finish_run, resumed, show_plan
    from gpuproof.launchers.registry import HostChoice

    where: dict[str, Any] = {"hosts": HostChoice(), "python": python}
    if resume is not None:
        refuse_dry_resume(dry_run=dry_run)
        refuse_settings_of_resumed(read=("words", "save_dir", "ab", "aa"))
        directory = resumed(resume, None, words, command="compare")
        return finish_run(directory, retry_failed=retry_failed, as_json=as_json, command="compare", **where)
    if retry_failed:
        raise UsageError("no run is resumed", place="--retry-failed", next_step="Add --resume RUN")
    block = {"max_regression": max_regression, "find": find, "max_pairs": max_pairs}
    config, settings = _interleaved(words, is_same=is_same, block=block)
    settings += [] if save_dir is None else [f"--run.save_dir={save_dir}"]
    settings += [] if timeout is None else [f"--run.time_limit_s={timeout}"]
    if dry_run:
        return show_plan(config, settings, **where)
    return begin_run(config, settings, as_json=as_json, command="compare", **where)[1]


def _compare_runs(
    *,
    words: Sequence[str],
    across: Sequence[str],
    max_regression: float | None,
    between_sessions: float | None,
    form: str | None,
    output: Path | None,
    save_dir: Path,
    as_json: bool,
    **_of_launches: Any,
) -> ExitCode:
    from gpuproof.campaign.finished import read_finished
    from gpuproof.comparison.runs import BETWEEN_SESSIONS, compare_runs, page_of
    from gpuproof.readings.selection import side_by_side
    from gpuproof.store.names import find_run

    chosen = chosen_format(form, output, as_json=as_json)
    if len(words) != 2 or any(word.startswith("--") for word in words):
        raise UsageError(
            f"expected two runs to compare, not {len(words)}",
            place=" ".join(words) or "compare",
            next_step="Give two run directories, as listed by `gpuproof runs`; or --ab for configurations",
        )
    sides = [read_finished(find_run(word, save_dir)) for word in words]
    result = compare_runs(
        sides[0],
        sides[1],
        across=across,
        max_regression=max_regression,
        between_sessions=BETWEEN_SESSIONS if between_sessions is None else between_sessions,
    )
    provenance = side_by_side(*(side.provenance for side in sides), command=typed_command())
    write_report(result, replace(page_of(result), provenance=provenance), chosen, output)
    return ExitCode(result.exit_code)


def _interleaved(words: Sequence[str], *, is_same: bool, block: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the recipe of both sides, and the options that describe how each side differs from it.

    Raises:
        UsageError: the number of configurations is not one or two, or nothing distinguishes them.
    """
    num_named = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
    configs, settings = list(words[:num_named]), words[num_named:]
    side_words = {
        side: [f"--{word.removeprefix(f'--{side}.')}" for word in settings if _is_of(word, side)]
        for side in SIDES
    }
    both = [word for word in settings if not any(_is_of(word, side) for side in (*SIDES, SUITE))]
    differs = len(configs) == 2 or any(side_words.values())
    if len(configs) not in (1, 2) or differs == is_same:
        raise UsageError(
            "--aa takes one configuration and no side-specific key; --ab two, or one with side-specific keys",
            place=" ".join(words) or "compare",
            next_step="Write --ab A.yaml B.yaml, --ab CONFIG --b.KEY=VALUE, or --aa CONFIG",
        )
    from gpuproof.config.load import load_config

    of_a = [*both, *side_words["a"]]  # without A's own keys, such as its URL, it may not be valid
    base = load_config(configs[0], of_a).config
    for side, source in zip(SIDES, (configs[0], configs[-1]), strict=True):
        other = load_config(source, [*both, *side_words[side]]).config
        _refuse_sweeps(other, source)
        block[side] = _differences(base, other)
        block[f"{side}_name"] = " ".join([source if len(configs) == 2 else side.upper(), *side_words[side]])
    if differs and block["a"] == block["b"]:
        common = f" (keys of {', '.join(NOT_DIFFERENCES)} are common to both)" if settings else ""
        raise UsageError(
            f"A and B are the same configuration{common}",
            place=" ".join(words),
            next_step="Give B another value; --aa compares a configuration with itself",
        )
    suite_words = [f"--{SUITE}.{key}={_written(value)}" for key, value in block.items() if value is not None]
    looks = [word for word in settings if _is_of(word, SUITE)]
    return configs[0], [*of_a, f"--suite={SUITE}", *suite_words, *looks]


def _refuse_sweeps(side: RunConfig, source: str) -> None:
    if side.suite is not None:
        raise UsageError(f"each side must be one recipe, not the suite {side.suite}", place=source)
    if side.matrix or side.search.kind is not None:
        raise UsageError("each side must be one recipe, without matrix or search", place=source)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_of(word: str, side: str) -> bool:
    return word.startswith(f"--{side}.")


def _differences(base: RunConfig, other: RunConfig) -> dict[str, Any]:
    """Return the keys in which a configuration differs from the base, with their values."""
    before, after = (config.model_dump(mode="json") for config in (base, other))
    differing: dict[str, Any] = {}
    for section, values in after.items():
        if section in NOT_DIFFERENCES or values == before[section]:
            continue
        if not isinstance(values, dict):
            differing[section] = values
            continue
        differing |= {
            f"{section}.{key}": value
            for key, value in values.items()
            if key not in before[section] or value != before[section][key]
        }
    return differing
