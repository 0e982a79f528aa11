"""What the rule of thumb says before anything is measured: parameters by the workload's closed form."""

from __future__ import annotations

from gpuproof.analysis.scaling import RuleOfThumb, advise
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.workload import choose_workload
from gpuproof.errors import UsageError
from gpuproof.suites.scale.plan import read_options


def advise_before(config: RunConfig) -> RuleOfThumb:
    """Say what the rule of thumb does of a recipe's workload and largest batch, by its thresholds.

    Raises:
        UsageError: there is no such workload, or how many parameters it has is not known before it is built.
    """
    chosen, options = choose_workload(config), read_options(config)
    work = chosen.info.work(chosen.options, chosen.shape)
    if work is None:
        raise UsageError(
            f"how many parameters {config.model.name} has is not known before it is built",
            place="--gpu-mode auto",
            next_step="Use --gpu-mode multi or single",
        )
    return advise(work.num_parameters, max(options.batch_sizes), options)
