"""How sparse is a model to be after so many updates, and at which of them are weights chosen anew?

Pure: numbers in, numbers out. An update is counted from 1; `begin` is the last one before pruning begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from gpuproof.base.errors import UsageError
from gpuproof.records.work.pruning import PruningSpec, SparsityRamp, end_of_pruning


@dataclass(frozen=True, slots=True, kw_only=True)
class SparsityPlan:
    """The sparsity of each update.

    >>> plan = SparsityPlan(target=0.8, begin=0, end=100, every=50)
    >>> [round(plan.sparsity_after(update), 6) for update in (0, 50, 100, 200)]
    [0.0, 0.7, 0.8, 0.8]
    """

    target: float
    begin: int
    end: int
    every: int
    ramp: SparsityRamp = "cubic"

    @classmethod
    def of(cls, spec: PruningSpec, *, total_steps: int | None) -> Self:
        """Lay a case's pruning over its updates.

        Raises:
            UsageError: no update is left for it, or the number of updates is needed and not known.
        """
        assert spec.target_sparsity is not None  # a rule of the recipe's
        end = end_of_pruning(spec.end_step, total_steps=total_steps)
        if end is None or end <= spec.begin_step:
            raise UsageError(
                "the number of updates is not known"
                if end is None
                else f"pruning would end at update {end}, and begins after update {spec.begin_step}",
                place="training.pruning.end_step",
                next_step="Set training.pruning.end_step to an update after training.pruning.begin_step, or "
                "train longer",
            )
        return cls(
            target=spec.target_sparsity,
            begin=spec.begin_step,
            end=end,
            every=spec.every_steps,
            ramp=spec.schedule,
        )

    def sparsity_after(self, update: int) -> float:
        """Return the share of weights that is to be zero after an update.

        With p the share of the ramp that is behind, cubic is s·(1 − (1 − p)³), equation 1 of Zhu and Gupta
        2017 (https://arxiv.org/abs/1710.01878) from no sparsity on; linear is s·p.
        """
        p = min(max((update - self.begin) / (self.end - self.begin), 0.0), 1.0)
        return self.target * (p if self.ramp == "linear" else 1 - (1 - p) ** 3)

    def chooses_at(self, update: int) -> bool:
        """Say whether weights are chosen anew after an update: now and then on the ramp, and at its end.

        After the end they stay as they are, as Zhu and Gupta have it.
        """
        on_the_ramp = self.begin < update < self.end
        return update == self.end or (on_the_ramp and (update - self.begin) % self.every == 0)
