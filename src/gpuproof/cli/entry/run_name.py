"""What commands take: a recipe, or a run (its directory, `last`, its number, or how its name begins)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

RESULTS = Path("results")
YAML = (".yaml", ".yml")


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
