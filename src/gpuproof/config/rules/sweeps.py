"""Which blocks each kind of run has, and which multi-point sections are mutually exclusive.

A recipe is a union discriminated by `kind`: a key from the block of another kind is rejected, with a note on
where it belongs. Several points come from a matrix, a search or the load suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpuproof.base import registry
from gpuproof.config.rules.base import Facts, Refusal, Refusals, without_effect
from gpuproof.records.work.serving import ServingSpec

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


BROUGHT = {
    "model": ("name", "num_classes", "options"),
    "data": ("name", "path", "batch_size", "image_size", "samples_per_epoch", "split", "download"),
    "benchmark": ("enabled", "measure_by", "measure_steps", "measure_seconds"),
    "monitoring": ("interval_s", "host_interval_s"),
    "inference": ("mode", "phase", "prompt_tokens", "new_tokens"),
    "serving": tuple(ServingSpec.types()),
}
"""Section → the keys in it that each test of the load suite sets itself or does not use."""
MATRIX = "matrix"
"""The suite that `gpuproof matrix` uses, and that runs commands."""
SWEPT_KINDS = ("training", "inference")
BY_KIND = ("batch_limit", "collective", "load", "probe", "recipe", "serving", "sweep")
"""Suites that kind, matrix and search select; each can only measure the recipes that select it."""
INSTEAD = {
    "benchmark": "Set load.num_epochs and load.num_batches",
    "monitoring": "Set load.metrics_sample_rate_s",
}
OF_A_MODEL = ("training", "inference", "serving", "load")
KINDS_OF: Mapping[str, tuple[str, ...]] = {
    "model": OF_A_MODEL,
    "data": OF_A_MODEL,
    "training": OF_A_MODEL,
    "benchmark": OF_A_MODEL,
    "profiling": OF_A_MODEL,
    "inference": ("inference", "serving", "load"),
    "serving": ("serving", "load"),
    "search": OF_A_MODEL,
    "load": ("load",),
    "collective": ("collective",),
    "probe": ("probe",),
    "command": ("command",),
}
"""Block → the kinds of run that use it, starting with the kind that it is named after. Keys that each test of
the load suite sets are covered by a separate rule; blocks that are not listed here exist for every kind."""
HINTS = {
    "collective": "-b, -e and other letters are from nccl-tests; a batch size is --data.batch_size",
}


def one_kind_of_sweep(config: RunConfig) -> Refusals:
    """Reject a matrix combined with a search."""
    if config.matrix and config.search.kind is not None:
        yield Refusal(
            keys=("search.kind", "matrix"),
            cause="a search chooses its points itself, but a matrix lists them",
            next_step="Remove one of the two sections",
        )


def search_has_a_kind(config: RunConfig) -> Refusals:
    """Reject search keys if there is no search."""
    changed = config.search.changed()
    if config.search.kind is None and changed:
        yield Refusal(
            keys=(f"search.{changed[0]}", "search.kind"),
            cause="nothing is searched for, since search.kind is null",
            next_step="Set search.kind to batch_size, or remove the section",
        )


def search_begins_within_its_bounds(config: RunConfig) -> Refusals:
    """Reject a search that starts above its upper end."""
    search = config.search
    if search.kind is not None and search.start > search.up_to:
        yield Refusal(
            keys=("search.start", "search.up_to"),
            cause=f"the search starts at {search.start}, above its end at {search.up_to}",
            next_step="Raise search.up_to, or lower search.start",
        )


def order_is_of_a_matrix(config: RunConfig) -> Refusals:
    """Reject an order seed if there is no matrix to shuffle."""
    if not config.matrix and "order_seed" in config.run.changed():
        yield Refusal(
            keys=("run.order_seed",),
            cause="it shuffles the points of a matrix, but there is none",
            next_step="Add a matrix section, or remove run.order_seed",
        )


def cases_are_of_the_suite(config: RunConfig) -> Refusals:
    """Reject the section `cases` if the suite does not read it."""
    if config.suite == MATRIX or (config.suite is None and config.kind == "command"):
        return
    step = f"Start it with `gpuproof matrix`, set suite to {MATRIX}, or remove the section"
    yield from without_effect("cases", config.cases, "it is for `gpuproof matrix`", step, beside="suite")


def cases_are_distinguishable(config: RunConfig) -> Refusals:
    """Reject a selection that matches no case, and names shared by two cases."""
    if config.cases.only or config.cases.name is not None:
        from gpuproof.config.matrix import names_are_different, only_names_cases

        yield from only_names_cases(config)
        yield from names_are_different(config)


def load_suite_sets_its_keys(config: RunConfig) -> Refusals:
    """Reject keys that each test of the load suite sets itself, since their values would be ignored."""
    if config.kind != "load":
        return
    for section, keys in BROUGHT.items():
        for key in (key for key in getattr(config, section).changed() if key in keys):
            yield Refusal(
                keys=(f"{section}.{key}", "kind"),
                cause="each of the twelve tests of kind load sets its own",
                next_step=INSTEAD.get(section, "Remove it, or set kind to training or inference"),
            )
    if config.matrix or config.search.kind is not None:
        key = "matrix" if config.matrix else "search.kind"
        cause = "the twelve tests of kind load already form a sweep"
        yield Refusal(keys=(key, "kind"), cause=cause, next_step=f"Remove {key}")


def block_is_of_the_suite(config: RunConfig) -> Refusals:
    """Reject options for a suite that is not selected."""
    for name in config.suite_options:
        if name != config.suite:
            yield Refusal(
                keys=(name, "suite"),
                cause=f"it is for the suite {name}, but suite is {config.suite or 'null'}",
                next_step=f"Set suite to {name}, or remove the section",
            )


def suite_is_installed(config: RunConfig, _facts: Facts) -> Refusals:
    """Reject a suite that no package registers."""
    if config.suite is not None and config.suite not in (suites := registry.names(registry.SUITES)):
        yield Refusal(
            keys=("suite",),
            cause=f"no suite is called {config.suite!r}",
            next_step=f"The suites are {', '.join(suites)}"
            if suites
            else "No installed package provides one",
        )


def suite_takes_the_recipe(config: RunConfig) -> Refusals:
    """Reject a suite that measures something else: it would report on work that never ran."""
    if config.suite not in BY_KIND or registry.find_owner(registry.SUITES, config.suite) != "gpuproof":
        return
    if not registry.load(registry.SUITES, config.suite).answers(config):
        but = (
            "with a matrix"
            if config.matrix
            else "with a search"
            if config.search.kind
            else "without a matrix"
        )
        yield Refusal(
            keys=("suite", "kind"),
            cause=f"the suite {config.suite} does not measure a recipe of kind {config.kind} {but}",
            next_step="Remove suite: kind, matrix and search select it",
        )


def points_train_or_infer(config: RunConfig) -> Refusals:
    """Reject a sweep over kinds whose results a sweep cannot compare."""
    if not config.matrix or config.suite is not None or config.kind not in SWEPT_KINDS:
        return
    from gpuproof.config.matrix import assignments

    for kind in dict.fromkeys(str(point.get("kind", config.kind)) for point in assignments(config.matrix)):
        if kind not in SWEPT_KINDS:
            yield Refusal(
                keys=("matrix.kind", "matrix"),
                cause=f"the points of a sweep are of kind {' or '.join(SWEPT_KINDS)}, not {kind}",
                next_step="Start a run of its own for each other kind",
            )


def blocks_are_of_the_kind(config: RunConfig) -> Refusals:
    """Reject each key of a block that does not belong to this kind of run, including swept keys."""
    swept: Iterable[str] = ()
    if config.matrix and config.kind != "command":
        from gpuproof.config.matrix import matrix_keys

        swept = matrix_keys(config.matrix)
    for block, kinds in KINDS_OF.items():
        if config.kind in kinds:
            continue
        # the load suite sets most keys itself
        *homes, last = [kind for kind in kinds if kind != "load"] or kinds
        home = f"{', '.join(homes)} or {last}" if homes else last
        hint = f"; {HINTS[block]}" if block in HINTS else ""
        changed = [f"{block}.{key}" for key in getattr(config, block).changed()]
        for key in [*changed, *(f"matrix.{key}" for key in swept if key.startswith(f"{block}."))]:
            yield Refusal(
                keys=(key, "kind"),
                cause=f"unknown key when kind is {config.kind}: it belongs to kind {home}",
                next_step=f"Remove it, or set kind to {home}{hint}",
            )
