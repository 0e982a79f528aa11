"""NCCL settings that reduce speed or hide a fault, each with its effect and its documentation.

In: the NCCL_* variables of a host. Out: an outcome for each noteworthy variable. gpuproof itself sets none of
them, except those in a communication profile that a user requests in order to measure its effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuproof.records.outcome import Expectation, Judged, Outcome
from gpuproof.verdict.check import stated_check
from gpuproof.verdict.facts import HostFacts

PAGE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
MEASURE = "Unset it, and measure with and without it: gpuproof run records every NCCL_ variable"


@dataclass(frozen=True, slots=True)
class CostlySetting:
    """A variable, the values that matter, and their effects."""

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
        "NCCL_P2P_DISABLE",
        _on,
        "GPUs of this host copy through its memory, not directly over NVLink or PCIe",
    ),
    CostlySetting("NCCL_P2P_LEVEL", _nearest, "direct copies between GPUs are never used"),
    CostlySetting(
        "NCCL_SHM_DISABLE",
        _on,
        "ranks of this host that cannot copy directly use the network instead of shared memory",
    ),
    CostlySetting("NCCL_IB_DISABLE", _on, "InfiniBand and RoCE are unused; everything goes over IP sockets"),
    CostlySetting(
        "NCCL_NET_GDR_LEVEL",
        _nearest,
        "the network card does not read GPU memory directly (no GPUDirect RDMA)",
    ),
    CostlySetting("NCCL_NVLS_ENABLE", lambda v: v == "0", "NVLink SHARP is not used"),
    CostlySetting("NCCL_ALGO", _any, "the algorithm is fixed; NCCL would choose by size and topology"),
    CostlySetting(
        "NCCL_PROTO",
        _any,
        "the protocol is fixed; LL128 corrupts data on platforms that do not support it",
    ),
    CostlySetting("NCCL_NTHREADS", _any, "the threads per CUDA block are fixed"),
    CostlySetting("NCCL_BUFFSIZE", _any, "the buffers between GPUs have a custom size"),
    CostlySetting("NCCL_MAX_NCHANNELS", _any, "the number of channels, and so the bandwidth, is limited"),
    CostlySetting("NCCL_MIN_NCHANNELS", _any, "channels use GPU cores that the model needs"),
    CostlySetting(
        "NCCL_DEBUG",
        lambda value: value.upper() in ("INFO", "TRACE"),
        "every rank prints a lot: good for debugging, not for measuring",
        next_step="Unset it, or set WARN, once the fault is found",
    ),
)


@stated_check("NCCL settings", "none", PAGE, MEASURE, part="fabric")
def judge_nccl_settings(fabric: HostFacts, expected: Expectation) -> Iterator[Outcome | Judged]:
    """Yield a warning for each setting that costs speed; if none does, yield one line that says so."""
    variables = fabric["variables"]
    hurting = [s for s in SETTINGS if s.variable in variables and s.hurts(variables[s.variable])]
    for setting in hurting:
        yield Judged(name=setting.variable, outcome=_warn(setting, variables[setting.variable]))
    if not hurting:
        others = [name for name in variables if name.startswith("NCCL_")]
        measured = f"none of the {len(SETTINGS)} settings that cost speed or print output is set"
        yield expected.judge(True, f"{measured}; set: {', '.join(others)}" if others else measured)


def _warn(setting: CostlySetting, value: str) -> Outcome:
    page = f"{PAGE}#{setting.variable.lower().replace('_', '-')}"
    expectation = Expectation("not set, so NCCL chooses", page, setting.next_step, otherwise="WARN")
    return expectation.judge(False, f"{value}: {setting.effect}")
