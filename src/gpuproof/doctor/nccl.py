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
class CostlySetting:
    """A variable, the values that matter, and what they do."""

    variable: str
    hurts: Callable[[str], bool]
    effect: str
    next_step: str = MEASURE


def _on(value: str) -> bool:
    return value not in ("", "0")


def _any(_value: str) -> bool:
    return True


def _nearest(value: str) -> bool:
    return value.upper() in ("0", "LOC")


SETTINGS = (
    CostlySetting(
        variable="NCCL_P2P_DISABLE",
        hurts=_on,
        effect="GPUs of this host do not copy directly over NVLink or PCIe, but through its memory",
    ),
    CostlySetting(
        variable="NCCL_P2P_LEVEL", hurts=_nearest, effect="direct copies between GPUs are never used"
    ),
    CostlySetting(
        variable="NCCL_SHM_DISABLE",
        hurts=_on,
        effect="ranks of this host that cannot copy directly talk over the network instead of shared memory",
    ),
    CostlySetting(
        variable="NCCL_IB_DISABLE",
        hurts=_on,
        effect="InfiniBand and RoCE are not used; everything goes over IP sockets",
    ),
    CostlySetting(
        variable="NCCL_NET_GDR_LEVEL",
        hurts=_nearest,
        effect="the network card does not read GPU memory directly (no GPUDirect RDMA)",
    ),
    CostlySetting(variable="NCCL_NVLS_ENABLE", hurts=lambda v: v == "0", effect="NVLink SHARP is not used"),
    CostlySetting(
        variable="NCCL_ALGO",
        hurts=_any,
        effect="the algorithm is forced for all sizes; NCCL would choose by size and topology",
    ),
    CostlySetting(
        variable="NCCL_PROTO",
        hurts=_any,
        effect="the protocol is forced; LL128 where the platform does not support it corrupts data",
    ),
    CostlySetting(variable="NCCL_NTHREADS", hurts=_any, effect="the threads of each CUDA block are forced"),
    CostlySetting(
        variable="NCCL_BUFFSIZE", hurts=_any, effect="the buffers between GPUs have a size of their own"
    ),
    CostlySetting(
        variable="NCCL_MAX_NCHANNELS", hurts=_any, effect="the channels, and so the bandwidth, are limited"
    ),
    CostlySetting(variable="NCCL_MIN_NCHANNELS", hurts=_any, effect="channels take GPU cores from the model"),
    CostlySetting(
        variable="NCCL_DEBUG",
        hurts=lambda value: value.upper() in ("INFO", "TRACE"),
        effect="every rank prints a great deal: good for finding a fault, not for measuring",
        next_step="Unset it, or set WARN, once the fault is found",
    ),
)


def judge_nccl_settings(variables: Mapping[str, str]) -> list[Judged]:
    """Return a warning for each setting that costs speed; where none does, one line that says so."""
    hurting = [s for s in SETTINGS if s.variable in variables and s.hurts(variables[s.variable])]
    if hurting:
        return [Judged(name=s.variable, outcome=_warn(s, variables[s.variable])) for s in hurting]
    others = [name for name in variables if name.startswith("NCCL_")]
    found = f"none of the {len(SETTINGS)} that cost speed or print is set"
    measured = f"{found}; set: {', '.join(others)}" if others else found
    return [
        Judged(
            name="NCCL settings",
            outcome=Outcome(status="PASS", measured=measured, expected="none", source=PAGE),
        )
    ]


def _warn(setting: CostlySetting, value: str) -> Outcome:
    return Outcome(
        status="WARN",
        measured=f"{value}: {setting.effect}",
        expected="not set, so that NCCL chooses",
        source=f"{PAGE}#{setting.variable.lower().replace('_', '-')}",
        next_step=setting.next_step,
        responsible="user",
    )
