"""Do several devices train the same as a single one? Both run the same steps on the same samples.

Two copies of the model start with the same weights. One is trained as usual: each rank uses its own samples,
and gradients are averaged over all ranks. The other is trained on this rank alone, on the samples of all
ranks, one rank's batch after another. Dropout is off and the optimizer is plain SGD, so that only the
averaging can cause differences.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuproof.records.breakdown import TrainingAgreement
from gpuproof.worker.data.batch_source import Batch
from gpuproof.worker.rank.recorder import Recorder
from gpuproof.worker.step.preparation import Prepared

NUM_STEPS = 10
LEARNING_RATE = 0.01
DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
SPLIT = "under {} no rank holds the whole model, so it cannot be trained alone"


def measure_equivalence(prepared: Prepared, recorder: Recorder) -> None:
    """Train both ways and record losses, gradient norms, and the largest final difference in weights."""
    assert prepared.parallelism is not None
    rank, strategy = prepared.identity.rank, prepared.parallelism.strategy
    if strategy != "ddp":
        recorder.write(TrainingAgreement(rank=rank, missing=SPLIT.format(strategy)))
        return
    shards = [_of_all_ranks(prepared.pool.next_batch()) for _ in range(NUM_STEPS)]
    module = prepared.workload.module
    together, alone = _without_dropout(module), _without_dropout(module)
    index = prepared.device.index
    wrapped = DistributedDataParallel(together, device_ids=None if index is None else [index])
    beat = recorder.heartbeat.beat
    # By now, ranks have different weights because some steps ran without averaging. The wrapper has copied
    # rank 0's weights to all of them.
    alone.load_state_dict(together.state_dict())
    several = _train(prepared, wrapped, [[of_step[rank]] for of_step in shards], beat=beat)
    single = _train(prepared, alone, shards, beat=beat)
    pairs = zip(together.parameters(), alone.parameters(), strict=True)
    furthest = max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)
    recorder.write(
        TrainingAgreement(
            rank=rank,
            loss_together=tuple(map(_mean_over_ranks, several[0])),
            loss_alone=tuple(float(loss) for loss in single[0]),
            gradient_norm_together=several[1],
            gradient_norm_alone=single[1],
            largest_weight_difference=furthest,
        )
    )


def _of_all_ranks(batch: Batch) -> list[Batch]:
    """Return the batch of each rank, in rank order."""
    gathered = []
    for part in batch:
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        gathered.append(parts)
    return list(zip(*gathered, strict=True))


def _mean_over_ranks(loss: torch.Tensor) -> float:
    summed = loss.clone()
    dist.all_reduce(summed)
    return float(summed) / dist.get_world_size()


def _without_dropout(module: nn.Module) -> nn.Module:
    copied = copy.deepcopy(module)
    for part in copied.modules():
        if isinstance(part, DROPOUT):
            part.p = 0.0
    return copied


def _train(
    prepared: Prepared, module: nn.Module, shards: Sequence[Sequence[Batch]], *, beat: Callable[[], None]
) -> tuple[list[torch.Tensor], tuple[float, ...]]:
    """Run a step over each group of batches; return each group's mean loss and gradient norm."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    losses, norms = [], []
    for batches in shards:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=prepared.device)
        for inputs, targets in batches:
            with prepared.precision.autocast():
                loss = prepared.workload.loss(module(inputs), targets) / len(batches)
            loss.backward()
            total += loss.detach().float()
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        norms.append(float(nn.utils.get_total_norm(gradients)))
        losses.append(total)
        optimizer.step()
        beat()
    return losses, tuple(norms)
