"""What does communication cost a step? Independent numbers that must never be mistaken for one another.

`comm_kernel_ms` is how long collectives ran, `comm_exposed_ms` how much of that no computation hid, both from
the traced steps; `allreduce_standalone_ms` is a bare all-reduce of the same buckets. Each is per step, and a
number that was not measured is None with its reason, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.analysis.profile import ProfileSummary

MS_PER_S = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationTimes:
    """Milliseconds a step on the first rank."""

    comm_exposed_ms: float | None
    comm_kernel_ms: float | None
    allreduce_standalone_ms: float | None
    missing: dict[str, str]
    """Why a number is None, by its name."""


def communication_times(profile: ProfileSummary, *, world_size: int) -> CommunicationTimes:
    """Read the communication of a step off the summary of a trace."""
    standalone = {"allreduce_standalone_ms": "no bare all-reduce was run beside this case"}
    if world_size == 1 or not profile.communication_s:
        alone = "one device talks to nobody"
        reason = alone if world_size == 1 else "the trace holds no collective that the summary knows"
        names = ("comm_exposed_ms", "comm_kernel_ms")
        return CommunicationTimes(
            comm_exposed_ms=None,
            comm_kernel_ms=None,
            allreduce_standalone_ms=None,
            missing={
                **dict.fromkeys(names, reason),
                **({"allreduce_standalone_ms": alone} if world_size == 1 else standalone),
            },
        )
    return CommunicationTimes(
        comm_exposed_ms=profile.exposed_s / profile.steps * MS_PER_S,
        comm_kernel_ms=profile.communication_s / profile.steps * MS_PER_S,
        allreduce_standalone_ms=None,
        missing=standalone,
    )
