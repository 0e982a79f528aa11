"""What the rule of thumb says before anything is measured: parameters by the workload's closed form."""

from __future__ import annotations

from gpuproof.analysis.scaling import RuleOfThumb, Thresholds, advise
from gpuproof.errors import UsageError
from gpuproof.workloads.info.lookup import find_workload


def advise_before(model: str, batch_sizes: str) -> RuleOfThumb:
    """Say what the rule of thumb does of a workload with its default options and the largest batch.

    Raises:
        UsageError: there is no such workload, its parameters are not known, or a batch size is no number.
    """
    info = find_workload(model)
    options = info.options_type()
    work = info.work(options, info.input_shape(options, None, None))
    if work is None:
        raise UsageError(
            f"how many parameters {model} has is not known before it is built",
            place="--gpu-mode auto",
            next_step="Use --gpu-mode multi or single",
        )
    try:
        largest = max(int(size) for size in batch_sizes.split(","))
    except ValueError as error:
        raise UsageError(
            f"not whole numbers: {batch_sizes}",
            place="--batch-sizes",
            next_step="Name them: --batch-sizes 32 64",
        ) from error
    return advise(work.num_parameters, largest, Thresholds())
