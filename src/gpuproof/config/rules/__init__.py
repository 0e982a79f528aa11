"""Reasons to reject a recipe, by subject: keys that are valid alone but conflict or fail here.

There are three kinds of rule: for a recipe alone, for a recipe with its workload, and for a recipe with
information about where it will run (`Facts`). A key that merely has no effect (momentum with Adam,
channels_last on a CPU) is never rejected: the run records it as not applied.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from gpuproof.base.errors import UsageError
from gpuproof.config.rules import data, measuring, ranks, secrets, sweeps, workload
from gpuproof.config.rules.base import Facts, Refusal, Refusals, RuleSet
from gpuproof.config.rules.workload import ChosenWorkload, choose_workload

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

OF_RECIPE: tuple[Callable[[RunConfig], Refusals], ...] = (
    measuring.window_has_an_end,
    measuring.window_fits_the_time_limit,
    data.epoch_holds_a_batch,
    data.data_has_a_place,
    data.held_out_is_of_files_in_a_pool,
    data.download_has_archive,
    data.one_checksum_is_of_one_archive,
    data.download_keys_need_a_download,
    data.every_label_has_an_output,
    ranks.cpu_has_no_indices,
    ranks.device_type_exists,
    ranks.nccl_needs_gpus,
    ranks.devices_are_distinct,
    ranks.ranks_have_devices,
    measuring.throughput_waits_for_no_step,
    measuring.latency_keeps_its_steps,
    sweeps.one_kind_of_sweep,
    sweeps.search_has_a_kind,
    sweeps.order_is_of_a_matrix,
    sweeps.search_begins_within_its_bounds,
    measuring.a_scaler_has_whole_weights,
    measuring.a_graph_can_hold_the_step,
    ranks.a_size_is_of_its_strategy,
    ranks.a_strategy_has_its_size,
    ranks.compression_is_of_ddp,
    ranks.bfloat16_needs_nccl,
    ranks.inference_shards_nothing,
    ranks.a_scaler_sees_whole_lists,
    sweeps.load_suite_sets_its_keys,
    sweeps.block_is_of_the_suite,
    sweeps.cases_are_of_the_suite,
    sweeps.cases_are_distinguishable,
)
OF_NEW_RUN: tuple[Callable[[RunConfig], Refusals], ...] = (
    measuring.host_is_read_no_more_often,
    sweeps.blocks_are_of_the_kind,
    sweeps.suite_takes_the_recipe,
    sweeps.points_train_or_infer,
    secrets.commands_hold_no_secret,
    secrets.other_texts_hold_no_secret,
)
"""The rules apply to what is about to run. Runs made before a rule existed can still be read."""
OF_WORKLOAD: tuple[Callable[[RunConfig, ChosenWorkload], Refusals], ...] = (
    workload.workload_is_of_the_kind,
    workload.fp64_is_of_plain_products,
)
OF_SAMPLES: tuple[Callable[[RunConfig, ChosenWorkload], Refusals], ...] = (
    data.workload_takes_the_samples,
    data.workload_distinguishes_the_classes,
    ranks.workload_can_be_split,
)
OF_PLACE: tuple[Callable[[RunConfig, Facts], Refusals], ...] = (
    sweeps.suite_is_installed,
    ranks.declared_ranks_are_launched,
    ranks.groups_fit_the_ranks,
    ranks.a_launcher_gives_one_launch,
    ranks.devices_have_ranks,
    ranks.one_job_has_its_hosts,
    ranks.one_job_has_equal_hosts,
    ranks.hosts_are_not_swept,
    secrets.variables_are_set,
)


OF_KIND = ("inference", "serving", "collective", "probe", "command")
"""Kinds that have their own rules, in the module of the same name."""
OF_TRAINING = {"pruning": ("pruning", "optimizer"), "tensorflow": ("framework", "reduction")}
"""Rule modules that reject nothing while these keys of `training` have their defaults."""


def _rule_sets(config: RunConfig) -> list[RuleSet]:
    """Return the rules that only some recipes can break, from the modules relevant to this one."""
    changed = set(config.training.changed())
    modules: list[str] = [config.kind] if config.kind in OF_KIND else []
    modules += [module for module, keys in OF_TRAINING.items() if changed & set(keys)]
    return [import_module(f"{__name__}.{module}").RULES for module in modules]


def check_recipe(config: RunConfig) -> list[Refusal]:
    """Return the reasons to reject a recipe in any environment."""
    rules = [*OF_RECIPE, *(rule for of in _rule_sets(config) for rule in of.of_recipe)]
    return [refusal for rule in rules for refusal in rule(config)]


def check_place(config: RunConfig, facts: Facts) -> list[Refusal]:
    """Return the reasons to reject a recipe in the environment where it will run."""
    sets = _rule_sets(config)
    of_run = [*OF_NEW_RUN, *(rule for of in sets for rule in of.of_new_run)]
    of_place = [*OF_PLACE, *(rule for of in sets for rule in of.of_place)]
    refusals = [refusal for rule in of_run for refusal in rule(config)]
    return [*refusals, *(refusal for rule in of_place for refusal in rule(config, facts))]


def check_workload(config: RunConfig) -> list[Refusal]:
    """Return the reasons to reject a recipe because of its workload; none if it has no workload."""
    if config.kind in ("load", "collective", "probe", "command") or config.matrix:
        return []  # each test or point has its own workload; the other kinds have none
    try:
        chosen = choose_workload(config)
    except UsageError as error:
        keys = (error.place or "model.name", "model.name")
        return [Refusal(keys=keys, cause=error.cause, next_step=error.next_step or "Set model.name")]
    return [refusal for rule in _workload_rules(config) for refusal in rule(config, chosen)]


def _workload_rules(config: RunConfig) -> tuple[Callable[[RunConfig, ChosenWorkload], Refusals], ...]:
    of_kind = (rule for rules in _rule_sets(config) for rule in rules.of_workload)
    return (*OF_WORKLOAD, *of_kind, *OF_SAMPLES)


def require_workload(config: RunConfig) -> ChosenWorkload:
    """Return the workload of a recipe that was not read from a file, or was changed after reading.

    Raises:
        UsageError: the workload is rejected; raised for the first reason.
    """
    chosen = choose_workload(config)
    for rule in _workload_rules(config):
        for refusal in rule(config, chosen):
            raise UsageError(refusal.cause, place=refusal.keys[0], next_step=refusal.next_step)
    return chosen
