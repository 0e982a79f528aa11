"""Conclude a run: turn its files into its result, its page and all derived files. Needs no device.

`gpuproof report RUN` does this, and so does every campaign when it ends. This module contains nothing
specific to any suite.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError, RecordError, UsageError
from gpuproof.base.files import link_plain, place_inside
from gpuproof.launches.subjects import device_indices
from gpuproof.readings.evidence import Evidence
from gpuproof.readings.recording import without_collection
from gpuproof.records.page import Chart, Commands, Files, Page, Picture, Section, Text
from gpuproof.records.result import A_LAUNCH, Result
from gpuproof.records.run import TRANSIENT_CAUSES, ProfileTrace, is_host_failure
from gpuproof.records.subject_names import named_page
from gpuproof.report.formats import json_text
from gpuproof.report.page_parts import with_pictures
from gpuproof.store import layout
from gpuproof.store.names import HOSTS, read_config, read_suite
from gpuproof.store.provenance import of_old_tree, of_run, read_provenance
from gpuproof.store.run import RunDirectory
from gpuproof.suites.base import Export, JsonContent, PictureContent, RecordingFiles, Suite, TextContent
from gpuproof.suites.cases import folder_name
from gpuproof.suites.registry import load_suite
from gpuproof.suites.results import HOSTS_FOLDER, environment_facts
from gpuproof.suites.sections import DURING, Common, benchmark_page
from gpuproof.verdict.simulated import CONDITION, as_simulated, is_simulated, marked


@dataclass(frozen=True, slots=True, kw_only=True)
class Concluded:
    """The result and page of a concluded run."""

    result: Result
    page: Page


TIMELINES = "timelines.json"
"""Data from which the plots of a run's records are drawn, as included in a page."""
BEHIND = (DURING, "Notes")
"""Sections before which plots of records are inserted if a page has no results; the first one found is
used."""
RECORDS_GONE = (
    "the records of this run are gone: these are the measures of result.json, which is left "
    "unchanged; tables, charts and files that are created from records are missing"
)


@without_collection()
def conclude(run: RunDirectory) -> Concluded:
    """Recreate the result, the page and every derived file of a run from its records.

    If the records no longer exist, the existing result stays unchanged.

    Raises:
        RecordError: a file of the run is damaged.
        EnvironmentUnfitError: the disk is full.
    """
    evidence = read_evidence(run)
    if (concluded := _without_records(run, evidence)) is not None:
        return concluded
    suite = read_suite(run)
    hosts = {launch.case.placement.host for launch in evidence.launches}
    if suite.scope == "each_host" and evidence.config.distributed.nodes == 1 and len(hosts) > 1:
        raise RecordError(
            "launches of several hosts would count as repeats of one: the run's hosts are not listed",
            place=f"run.json: {HOSTS}",
            next_step="Restore the run's run.json, or measure again",
        )
    conclusion = suite.conclude(evidence)
    notes = [*_write(run, conclusion.exports), *_copy_traces(run, evidence)]
    facts = environment_facts(evidence.launches, by_inventory=True)
    if facts:
        run.write_json(layout.ENVIRONMENT, facts)
    concluded = _concluded(suite, conclusion.result, evidence)
    run.write_text(layout.RESULT, json_text(concluded.result))
    if pictures := _pictures(evidence):
        from gpuproof.report.pictures import picture_data

        run.write_json(TIMELINES, [picture_data(picture) for picture in pictures])
    page = with_pictures(concluded.page, pictures, before=BEHIND)
    return replace(concluded, page=_with_files(page, run, concluded.result, suite, notes))


def _pictures(evidence: Evidence) -> tuple[Picture | Chart, ...]:
    # the process that started the run has not imported it
    from gpuproof.observe.run_timeline import (
        run_pictures,
    )

    return run_pictures(evidence)


@without_collection()
def conclude_unwritten(run: RunDirectory) -> Concluded:
    """Evaluate a run in a read-only location: return the result and the page, without writing files.

    Raises:
        RecordError: a file of the run is damaged.
    """
    evidence, suite = read_evidence(run), read_suite(run)
    if (without_records := _without_records(run, evidence)) is not None:
        return without_records
    concluded = _concluded(suite, suite.conclude(evidence).result, evidence)
    return replace(concluded, page=with_pictures(concluded.page, _pictures(evidence), before=BEHIND))


def _without_records(run: RunDirectory, evidence: Evidence) -> Concluded | None:
    """Return a run's existing result if its records were lost; None if there are records.

    Only its measures and outcomes are shown, since the rest of a page has the format of the version that
    wrote it.
    """
    result = None if evidence.launches else run.read_result()
    if result is None or not result.num_launches:
        return None
    page = _page_of_measures(result, RECORDS_GONE)
    return Concluded(result=result, page=replace(page, provenance=read_provenance(run, result)))


def _page_of_measures(result: Result, *notes: str) -> Page:
    from gpuproof.suites.many_subjects import values_table
    from gpuproof.verdict.page import outcome_sections

    common = Common(title=f"{result.suite} {result.run_id}", work=result.suite, notes=notes)
    sections = outcome_sections("Checks", result.outcomes) if result.outcomes else []
    return benchmark_page(result, common, *sections, values_table(result.measures), num_measures=0)


def page_of_result(result: Result) -> Page:
    """Return the page for a result alone, without the other files of its run.

    The page shows only the measures if the suite is not installed, or if another version of it wrote the
    result.
    """
    try:
        page = load_suite(result.suite).page(result)
    except (UsageError, RecordError):
        page = _page_of_measures(result)
    page = named_page(page, result.device_indices)
    return marked(page) if result.conditions.get(CONDITION) else page


@without_collection()
def conclude_otherwise(run: RunDirectory, options: Mapping[str, Any]) -> Concluded:
    """Evaluate a run with different suite options, leaving the run and its files unchanged.

    Raises:
        UsageError: the suite cannot evaluate a run with these options.
        RecordError: a file of the run is damaged.
    """
    evidence, suite = read_evidence(run), read_suite(run)
    recorded = evidence.config.suite_options
    suite_options = {**recorded, suite.name: {**recorded.get(suite.name, {}), **options}}
    other = replace(evidence, config=evidence.config.model_copy(update={"suite_options": suite_options}))
    concluded = _concluded(suite, suite.conclude(other).result, other)
    return replace(concluded, page=_of_run(concluded.page, run))


def _concluded(suite: Suite, result: Result, evidence: Evidence) -> Concluded:
    """Return a result with its page, which states its origin; both say so if the run was simulated."""
    simulated = is_simulated(evidence.launches)
    result = replace(result, device_indices=device_indices(evidence.launches))
    result = as_simulated(result) if simulated else result
    page = named_page(suite.page(result), result.device_indices)
    page = marked(page) if simulated else page
    hosts = environment_facts(evidence.launches, by_inventory=True) or {}
    provenance = of_run(evidence.description, evidence.launches, hosts, result.conditions)
    return Concluded(result=result, page=replace(page, provenance=provenance))


def conclude_tree(folder: Path) -> Concluded:
    """Summarise the folder of an older test matrix; existing plots are left unchanged.

    Raises:
        UsageError: the folder contains no test, or one of its files cannot be read.
    """
    from gpuproof.suites.matrix.old_tree import conclude_old_tree, pictures_of
    from gpuproof.suites.matrix.page import page

    cases, result = conclude_old_tree(folder)
    wanted = [export for export in pictures_of(cases, result) if not (folder / export.name).exists()]
    notes = tuple(_write(RunDirectory(folder), wanted))
    laid_out = page(result)
    files = Files(
        title="Files", folder=str(folder), names=tuple(sorted(path.name for path in folder.iterdir()))
    )
    more = [Text(title="", lines=notes)] if notes else []
    sections = (*laid_out.sections, *more, files)
    return Concluded(result=result, page=_older(replace(laid_out, sections=sections)))


def _older(page: Page) -> Page:
    """Leave out what is only known of gpuproof's own launches."""
    sections = tuple(one for one in page.sections if not (isinstance(one, Text) and A_LAUNCH in one.lines))
    return replace(page, sections=sections, provenance=of_old_tree())


def conclude_older(path: Path) -> Concluded | None:
    """Return the conclusion for an older tool's matrix folder or result; None if it is neither.

    Raises:
        UsageError: a matrix file cannot be read.
    """
    from gpuproof.campaign.finished import read_older_result
    from gpuproof.suites.matrix.old_tree import is_old_tree

    if is_old_tree(path):
        return conclude_tree(path)
    if (result := read_older_result(path)) is None:
        return None
    return Concluded(result=result, page=_older(_page_of_measures(result)))


def read_evidence(run: RunDirectory) -> Evidence:
    """Read everything known about a run.

    Raises:
        RecordError: a file of the run is damaged.
    """
    description = run.description()
    return Evidence(
        description=description,
        config=read_config(run),
        launches=tuple(run.cases()),
        hosts=tuple((description.get(HOSTS) or {}).get("hosts", ())),
        recording_at=run.recording_at,
        folder_of=run.case_folder,
    )


def _write(run: RunDirectory, exports: Iterable[Export]) -> Iterator[str]:
    """Write the derived files; yield a note for each one that cannot be drawn."""
    for export in exports:
        path = run.place(export.name)
        match export.content:
            case str(text):
                run.write_text(export.name, text)
            case TextContent(make):
                run.write_text(export.name, make())
            case JsonContent(value):
                run.write_json(export.name, value)
            case RecordingFiles(load, metadata):
                from gpuproof.observe.derived import Wanted, write_derived  # only for a matrix

                yield from write_derived(load(), Wanted(stem=path, metadata=metadata, plot=True)).failures
            case content:
                try:
                    if not isinstance(content, PictureContent):
                        content(path)
                    elif (picture := content.make()) is not None:
                        from gpuproof.report.pictures import write_picture  # not for runs without plots

                        write_picture(picture, path)
                except EnvironmentUnfitError as error:
                    yield f"no {export.name}: {error}"


def _copy_traces(run: RunDirectory, evidence: Evidence) -> Iterator[str]:
    """Put a trace in the run's folder, and each host's in its own; yield a note if all are lost.

    The trace is copied from the first launch that has one, since other launches may have lost theirs.
    """
    sources = [
        (launch.case.placement.host, place_inside(run.case_folder(launch.case), trace.file))
        for launch in evidence.launches
        for trace in launch.of(ProfileTrace)
    ]
    traces = [(host, source) for host, source in sources if source.is_file()]
    for host, source in reversed(traces):
        names = [source.name]
        if evidence.hosts and host is not None:
            names.append(f"{HOSTS_FOLDER}/{folder_name(host)}/{source.name}")
        try:
            for name in names:
                link_plain(source, run.place(name))
        except OSError as error:
            yield f"{source.name} is not copied from {source}: {error.strerror}"
    if sources and not traces:
        yield f"{sources[0][1].name} was written but is gone: expected {sources[0][1]}"


def _with_files(page: Page, run: RunDirectory, result: Result, suite: Suite, notes: Iterable[str]) -> Page:
    """Add what all runs have in common: notes on their files, their location, and the next commands."""
    lines = tuple(notes)
    has_notes = bool(page.sections) and page.sections[-1].title == "Notes"
    names = sorted(path.name for path in run.root.iterdir() if not path.name.startswith("."))
    more = [Text(title="" if has_notes else "Notes", lines=lines)] if lines else []
    files = Files(title="Files", folder=str(run.root), names=tuple(names))
    commands = Commands(title="Next", commands=tuple(_next_commands(run, result, suite)))
    return replace(page, sections=(*_of_run(page, run).sections, *more, files, commands))


def _of_run(page: Page, run: RunDirectory) -> Page:
    """Return a page with the run's path in its commands, since a suite does not know the path."""
    root = shlex.quote(str(run.root))

    def with_place(section: Section) -> Section:
        if not isinstance(section, Commands):
            return section
        commands = (re.sub(r"\bRUN\b", lambda _: root, command) for command in section.commands)
        return replace(section, commands=tuple(commands))

    return replace(page, sections=tuple(map(with_place, page.sections)))


def _next_commands(run: RunDirectory, result: Result, suite: Suite) -> Iterator[str]:
    """Yield commands, most helpful first, that explain a machine, finish a run, or show it again."""
    quoted = shlex.quote(str(run.root))
    is_unfit = any(f.cause == "environment" and not is_host_failure(f) for f in result.failures)
    if is_unfit and not result.num_launches:
        yield "gpuproof doctor"
    if result.num_launches < result.num_planned:
        failed = any(failure.cause not in TRANSIENT_CAUSES for failure in result.failures)
        yield f"gpuproof {suite.command} --resume {quoted}{' --retry-failed' if failed else ''}"
    yield f"gpuproof report {quoted}"
