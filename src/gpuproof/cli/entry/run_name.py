"""A run as commands take it: a directory, `last`, a number of `gpuproof runs`, or how its name begins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

RESULTS = Path("results")


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
