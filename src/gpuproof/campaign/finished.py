"""Finished runs, and results of older tools, read from disk to be compared."""

from __future__ import annotations

from pathlib import Path

from gpuproof.base.errors import UsageError
from gpuproof.comparison.conditions import conditions_of
from gpuproof.comparison.runs import FinishedRun
from gpuproof.store.provenance import of_old_tree, read_environment, read_provenance
from gpuproof.store.run import RunDirectory
from gpuproof.suites.matrix.old_tree import conclude_old_tree, is_old_tree
from gpuproof.suites.older_results import read_older_result


def read_finished(path: Path) -> FinishedRun:
    """Read a run that was concluded, or a result of an older tool.

    Raises:
        UsageError: there is no run, or it was not concluded.
        RecordError: a file of it is damaged.
    """
    older = conclude_old_tree(path)[1] if is_old_tree(path) else read_older_result(path)
    if older is not None:
        return FinishedRun(
            name=str(path),
            result=older,
            conditions=older.conditions,
            knows_stack=False,
            provenance=of_old_tree(),
        )
    run = RunDirectory.open(path)
    result = run.read_result()
    if result is None:
        raise UsageError(
            "the run has no result yet: there is no result.json in it",
            place=str(path),
            next_step=f"`gpuproof report {path}` makes it",
        )
    hosts = read_environment(run)
    return FinishedRun(
        name=str(path),
        result=result,
        conditions=conditions_of(result, run.description()["config"], hosts),
        knows_stack=hosts is not None,
        provenance=read_provenance(run, result),
    )
