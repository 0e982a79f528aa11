"""Settings of NCCL that cost speed or hide a fault: what each does, and where that is documented.

In: the NCCL_* variables of a host. Out: an outcome for each that deserves a word. gpuproof itself sets none
of them, ever: they are a user's to choose, and to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuproof.records.outcome import Judged, Outcome

PAGE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
MEASURE = "Unset it, and measure with and without: gpuproof run records every NCCL_ variable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable, the values that matter, and what they do."""

    variable: str
    hurts: Callable[[str], bool]
    effect: str
    next_step: str = MEASURE

    @property
    def source(self) -> str:
        """The variable's own paragraph."""
        return f"{PAGE}#{self.variable.lower().replace('_', '-')}"


def _on(value: str) -> bool:
    return value not in ("", "0")


def _any(_value: str) -> bool:
    return True


def _nearest(value: str) -> bool:
    return value.upper() in ("0", "LOC")


SETTINGS = (
    Setting(
        variable="NCCL_P2P_DISABLE",
        hurts=_on,
        effect="GPUs of this host do not talk directly over NVLink or PCIe, but through its memory",
    ),
    Setting(variable="NCCL_P2P_LEVEL", hurts=_nearest, effect="direct copies between GPUs are never used"),
    Setting(
        variable="NCCL_SHM_DISABLE",
        hurts=_on,
        effect="ranks of this host that cannot copy directly talk over the network instead of shared memory",
    ),
    Setting(
        variable="NCCL_IB_DISABLE",
        hurts=_on,
        effect="InfiniBand and RoCE are not used; everything goes over IP sockets",
    ),
    Setting(
        variable="NCCL_NET_GDR_LEVEL",
        hurts=_nearest,
        effect="the network card does not read GPU memory directly (no GPUDirect RDMA)",
    ),
    Setting(variable="NCCL_NVLS_ENABLE", hurts=lambda v: v == "0", effect="NVLink SHARP is not used"),
    Setting(
        variable="NCCL_ALGO",
        hurts=_any,
        effect="the algorithm is forced for all sizes; NCCL would choose by size and topology",
    ),
    Setting(
        variable="NCCL_PROTO",
        hurts=_any,
        effect="the protocol is forced; LL128 where the platform does not support it corrupts data",
    ),
    Setting(variable="NCCL_NTHREADS", hurts=_any, effect="the threads of each CUDA block are forced"),
    Setting(variable="NCCL_BUFFSIZE", hurts=_any, effect="the buffers between GPUs have a size of their own"),
    Setting(
        variable="NCCL_MAX_NCHANNELS", hurts=_any, effect="the channels, and so the bandwidth, are limited"
    ),
    Setting(variable="NCCL_MIN_NCHANNELS", hurts=_any, effect="channels take GPU cores from the model"),
    Setting(
        variable="NCCL_DEBUG",
        hurts=lambda value: value.upper() in ("INFO", "TRACE"),
        effect="every rank prints a great deal: good for finding a fault, not for measuring",
        next_step="Unset it, or set WARN, once the fault is found",
    ),
)


def judge_nccl_settings(variables: Mapping[str, str]) -> list[Judged]:
    """Return a warning for each setting that costs speed; where none does, one line that says so."""
    warnings = [
        Judged(
            name=setting.variable,
            outcome=Outcome(
                status="WARN",
                measured=f"{variables[setting.variable]}: {setting.effect}",
                expected="not set, so that NCCL chooses",
                source=setting.source,
                next_step=setting.next_step,
            ),
        )
        for setting in SETTINGS
        if setting.variable in variables and setting.hurts(variables[setting.variable])
    ]
    if warnings:
        return warnings
    others = [name for name in variables if name.startswith("NCCL_")]
    found = f"none of the {len(SETTINGS)} that cost speed or print is set"
    return [
        Judged(
            name="NCCL settings",
            outcome=Outcome(
                status="PASS",
                measured=f"{found}; set: {', '.join(others)}" if others else found,
                expected="none",
                source=PAGE,
            ),
        )
    ]
