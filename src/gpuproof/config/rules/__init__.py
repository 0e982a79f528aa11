"""Every refusal of a recipe, by subject: keys that are fine alone and cannot hold together, or not here.

Three kinds of rule: of a recipe by itself, of a recipe with the workload that it names, and of a recipe with
what is known of where it is to run (`Facts`). A key that is merely without effect (momentum under Adam,
channels_last on a CPU) is refused by none: the run records it as not applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuproof.config import chosen_cases
from gpuproof.config.rules import (
    collective,
    command,
    data,
    kinds,
    launch,
    measuring,
    probe,
    pruning,
    ranks,
    secrets,
    serving,
    sweeps,
    tensorflow,
    text,
    workload,
)
from gpuproof.config.rules.base import Facts, Refusal, Refusals
from gpuproof.config.rules.workload import ChosenWorkload, choose_workload
from gpuproof.errors import UsageError

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
    text.prompts_are_synthetic,
    text.a_cache_is_not_compiled,
    text.a_cache_is_not_split,
    sweeps.one_kind_of_sweep,
    sweeps.search_has_a_kind,
    sweeps.order_is_of_a_matrix,
    sweeps.search_begins_within_its_bounds,
    serving.serving_can_be_judged,
    serving.bounds_of_tokens_need_tokens,
    serving.endpoint_has_an_address,
    serving.a_request_fits_a_batch,
    serving.one_rank_serves,
    serving.prompts_are_answered,
    serving.an_endpoint_gets_single_prompts,
    measuring.a_graph_can_hold_the_step,
    ranks.a_size_is_of_its_strategy,
    ranks.a_strategy_has_its_size,
    ranks.compression_is_of_ddp,
    ranks.bfloat16_needs_nccl,
    ranks.inference_shards_nothing,
    ranks.a_scaler_sees_whole_lists,
    sweeps.load_suite_sets_its_keys,
    sweeps.block_is_of_the_suite,
    collective.sizes_go_up,
    collective.collective_sweeps_nothing,
    pruning.a_method_has_its_target,
    pruning.state_pruning_is_of_adamwprune,
    pruning.schedules_have_an_end,
    pruning.pruning_ends_in_the_window,
    pruning.whole_weights_are_pruned,
    pruning.scores_see_whole_gradients,
    probe.probe_keys_are_of_the_probe,
    probe.probe_can_be_done,
    command.command_has_words,
    command.command_has_no_ranks,
    command.fields_exist,
    command.fields_are_used,
    command.cases_are_of_the_suite,
    command.cases_write_apart,
    tensorflow.tensorflow_trains_perceptrons,
    tensorflow.reduction_is_of_tensorflow,
    chosen_cases.only_names_cases,
    chosen_cases.names_are_different,
)
OF_NEW_RUN: tuple[Callable[[RunConfig], Refusals], ...] = (
    measuring.host_is_read_no_more_often,
    serving.scenario_is_measured,
    serving.serving_sweeps_nothing,
    kinds.blocks_are_of_the_kind,
    serving.an_address_can_be_reached,
    secrets.commands_hold_no_secret,
    secrets.other_texts_hold_no_secret,
)
"""Of what is about to be run. Runs that were made before one of these was a rule are still read."""
OF_WORKLOAD: tuple[Callable[[RunConfig, ChosenWorkload], Refusals], ...] = (
    workload.workload_is_of_the_kind,
    workload.fp64_is_of_plain_products,
    text.a_phase_has_a_cache,
    text.requests_are_answered,
    data.workload_takes_the_samples,
    data.workload_tells_the_classes_apart,
    ranks.workload_can_be_split,
)
OF_PLACE: tuple[Callable[[RunConfig, Facts], Refusals], ...] = (
    sweeps.suite_is_installed,
    launch.declared_ranks_are_launched,
    launch.groups_fit_the_ranks,
    launch.a_launcher_gives_one_launch,
    launch.devices_have_ranks,
    launch.one_job_has_its_hosts,
    launch.one_job_has_equal_hosts,
    launch.hosts_are_not_swept,
    collective.collective_has_ranks,
    probe.probe_has_its_ranks,
    tensorflow.tensorflow_runs_here,
    secrets.variables_are_set,
    command.program_is_there,
)


def check_recipe(config: RunConfig) -> list[Refusal]:
    """Return what a recipe by itself is refused for."""
    return [refusal for rule in OF_RECIPE for refusal in rule(config)]


def check_place(config: RunConfig, facts: Facts) -> list[Refusal]:
    """Return what a recipe is refused for where it is to run."""
    of_recipe = [refusal for rule in OF_NEW_RUN for refusal in rule(config)]
    return [*of_recipe, *(refusal for rule in OF_PLACE for refusal in rule(config, facts))]


def check_workload(config: RunConfig) -> list[Refusal]:
    """Return what a recipe is refused for with its workload; of one that names none by itself, nothing."""
    if config.kind in ("load", "collective", "probe", "command") or config.matrix:
        return []  # each test, and each point, has a workload of its own; the others have none
    try:
        chosen = choose_workload(config)
    except UsageError as error:
        keys = (error.place or "model.name", "model.name")
        return [Refusal(keys=keys, cause=error.cause, next_step=error.next_step or "Set model.name")]
    return [refusal for rule in OF_WORKLOAD for refusal in rule(config, chosen)]


def require_workload(config: RunConfig) -> ChosenWorkload:
    """Return the workload of a recipe that was not read from a file, or was changed since.

    Raises:
        UsageError: at the first refusal.
    """
    chosen = choose_workload(config)
    for rule in OF_WORKLOAD:
        for refusal in rule(config, chosen):
            raise UsageError(refusal.cause, place=refusal.keys[0], next_step=refusal.next_step)
    return chosen
