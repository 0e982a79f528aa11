"""After a validation: write files next to the run, or re-evaluate a run without measuring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.processes.scratch import scratch_folder

if TYPE_CHECKING:
    from gpuproof.campaign.conclude import Concluded
    from gpuproof.records.result import Result
    from gpuproof.store.run import RunDirectory

COMMAND = "validate"


def written(
    directory: RunDirectory,
    code: ExitCode,
    *,
    junit: Path | None,
    junit_strict: bool,
    bundle: Path | None,
    write_rules: Path | None,
) -> ExitCode:
    """Write the requested files next to the run; an interrupted run has no result yet."""
    result = directory.read_result()
    if result is not None:
        _write_next_to(result, junit=junit, junit_strict=junit_strict, write_rules=write_rules)
    if bundle is not None:
        _pack(directory, bundle)
    return code


def _write_next_to(
    result: Result, *, junit: Path | None, junit_strict: bool, write_rules: Path | None
) -> None:
    from gpuproof.base.files import write_text
    from gpuproof.report.junit import junit as junit_text

    if junit is not None:
        write_text(junit, junit_text(result, is_strict=junit_strict))
    if write_rules is not None:
        _write_rules(write_rules, result)


def _write_rules(path: Path, result: Result) -> None:
    """Write the rules for the user to fill in; never overwrite an existing file.

    Raises:
        UsageError: the file exists.
    """
    from gpuproof.base.files import write_text

    text = result.detail.get("rules_to_fill")
    if text is None:
        click.echo("Every measured rate is judged: there is no rule to write", err=True)
    elif path.exists():
        raise UsageError("already exists", place=f"--write-rules {path}", next_step="Name another one")
    else:
        write_text(path, text)
        click.echo(f"Rules to fill in: {path}", err=True)


def _pack(directory: RunDirectory, path: Path) -> None:
    from gpuproof.store.bundle import write_bundle

    hashed = write_bundle(directory, path)
    click.echo(f"Evidence: {path}, SHA-256 of its manifest {hashed}", err=True)


def judge_again(
    path: Path,
    standards: Mapping[str, Any],
    *,
    junit: Path | None,
    junit_strict: bool,
    bundle: Path | None,
    write_rules: Path | None,
    as_json: bool,
) -> ExitCode:
    """Evaluate earlier measurements with the given rules and baseline."""
    from gpuproof.cli.report import show_report

    with _opened(path) as directory:
        concluded = _concluded(directory, standards)
        if bundle is not None:
            _pack(directory, bundle)
    show_report(concluded, as_json=as_json)
    _write_next_to(concluded.result, junit=junit, junit_strict=junit_strict, write_rules=write_rules)
    return ExitCode(concluded.result.exit_code)


def _concluded(directory: RunDirectory, standards: Mapping[str, Any]) -> Concluded:
    from gpuproof.campaign.conclude import conclude_otherwise
    from gpuproof.store.names import read_suite

    if read_suite(directory).command != COMMAND:
        raise UsageError(
            "this is not a validation run",
            place=f"--from {directory.root}",
            next_step=f"Show it with: gpuproof report {directory.root}",
        )
    return conclude_otherwise(directory, standards)


@contextmanager
def _opened(path: Path) -> Iterator[RunDirectory]:
    """Yield the run at a path; an evidence archive is unpacked temporarily."""
    from gpuproof.store.bundle import open_bundle
    from gpuproof.store.run import RunDirectory

    if not path.is_file():
        yield RunDirectory.open(path)
        return
    with scratch_folder("evidence-") as folder:
        directory, hashed = open_bundle(path, folder)
        click.echo(f"Every file is unchanged since it was packed; SHA-256 of the manifest {hashed}", err=True)
        yield directory


def read_standards(rules: Path | None, baseline: str | None, references: Path | None) -> dict[str, Any]:
    """Return the suite options for the rules, the baseline and the references.

    Raises:
        UsageError: a rule can never reach a verdict, the references cannot be read, or the baseline does not
            exist.
        RecordError: the baseline is damaged.
    """
    values: dict[str, Any] = {}
    from gpuproof.config.entries import read_entries

    if rules is not None:
        from gpuproof.verdict.rules import load_rules

        load_rules(str(rules))
        values |= {"file_rules": read_entries(str(rules), what="rules"), "file_source": rules.name}
    if baseline is not None:
        from gpuproof.cli.standards.baseline import DIRECTORY
        from gpuproof.records.codec import to_json
        from gpuproof.store.baselines import baseline_path, read_baseline

        values["baseline"] = to_json(read_baseline(baseline_path(baseline, DIRECTORY)))
    if references is not None:
        from gpuproof.verdict.references import references_with

        values["references"] = read_entries(str(references), what="references")
        references_with(values["references"], place=str(references))
    return values
