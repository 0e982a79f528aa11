"""Is each GPU set up as intended? ECC, memory, MIG, PCIe, clocks, links, and driver errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from gpuproof.records.outcome import Outcome, not_applicable, pass_or_fail
from gpuproof.records.readings import UNSUPPORTED
from gpuproof.verdict.check import FactCheck, check
from gpuproof.verdict.checks.answers import Device, gpu_check, gpus_by_type, unanswered, with_unlisted
from gpuproof.verdict.facts import FleetFacts

NVML = "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html"
NVSMI = "https://docs.nvidia.com/deploy/nvidia-smi/"
ROUNDING_W = 1.0
OF_NVIDIA = ("ecc_mode", "mig_mode", "persistence_mode")
"""Modes that only NVIDIA's driver can set and report."""
MEMORY_COUNTERS = ("remapped_rows_failed", "remapped_rows_pending", "ecc_uncorrected_count")
LOOK = "Check it with: gpuproof doctor --json"
NEVER = (
    UNSUPPORTED,
    *("the driver does not give it", "the driver does not provide it", "this card or kernel has no "),
    *("the amdgpu driver has no file", "only measured for the whole GPU", "this driver's NVML is too old"),
    *("the driver does not report XIDs", "amdgpu only announces events", "Intel's drivers report resets"),
)
"""Prefixes of reasons that mean the board or its driver never reports a fact; all but the first are from runs
of older versions. Every other reason means that the fact could not be read this time."""


def _static(device: Device, fact: str) -> object:
    return (device.get("static") or {}).get(fact)


def _lacks(subject: str, device: Device, fact: str, what: str) -> Outcome:
    """Return why a fact is missing; not applicable if the driver says that the board does not support it."""
    reasons = {**(device.get("unavailable") or {}), **(device.get("state_unavailable") or {})}
    reason = reasons.get(fact)
    if reason is None and fact in OF_NVIDIA and device.get("vendor") not in (None, "nvidia"):
        reason = f"{UNSUPPORTED} by {device.get('vendor')} devices"
    if reason is None:
        return unanswered(subject, f"its {what} was not queried: the run is from an older version", LOOK)
    return lacking(subject, str(device.get("name")), what, reason)


def lacking(subject: str, name: str, what: str, reason: str, next_step: str = LOOK) -> Outcome:
    """Return an error if something could not be read this time; not applicable if it never can be."""
    if reason.startswith(NEVER):
        return not_applicable(f"{name} does not report its {what}: {reason}", subject)
    return unanswered(subject, f"its {what} could not be read: {reason}", next_step)


def _mode_check(
    name: str, summary: str, fact: str, what: str, wanted: str, *, next_step: str, warns: bool = False
) -> FactCheck:
    """Return a check of a mode that the driver reports."""

    def judge(subject: str, device: Device) -> Outcome:
        mode = _static(device, fact)
        if mode is None:
            return _lacks(subject, device, fact, f"{what.removesuffix(' mode')} mode")
        expected = wanted if what.endswith(" mode") else f"{what} {wanted}"
        answer = partial(pass_or_fail, expected=expected, source=NVSMI, next_step=next_step, warns=warns)
        return answer(subject, mode == wanted, f"{what} {mode}")

    return gpu_check(name, summary)(judge)


MODES = (
    _mode_check(
        "ecc",
        "ECC is enabled on every GPU",
        "ecc_mode",
        "ECC",
        "enabled",
        next_step="nvidia-smi -e 1 as root, then reset the GPU",
    ),
    _mode_check(
        "mig",
        "no GPU is split into MIG instances",
        "mig_mode",
        "MIG",
        "disabled",
        next_step="nvidia-smi -mig 0 as root, or evaluate its instances with separate rules",
    ),
    _mode_check(
        "persistence",  # otherwise every first use wakes the GPU
        "drivers stay loaded between runs",
        "persistence_mode",
        "persistence mode",
        "enabled",
        next_step="Start nvidia-persistenced, or nvidia-smi -pm 1 as root",
        warns=True,
    ),
)


@gpu_check("pcie", "every GPU has all lanes of its slot")
def judge_pcie(subject: str, device: Device) -> Outcome:
    """Check the lanes in use; the generation is only reported, since it drops when a GPU is idle."""
    most, state = _static(device, "pcie_width_max"), device.get("state") or {}
    width = state.get("pcie_width")
    if width is None or most is None:
        return _lacks(subject, device, "pcie_width" if width is None else "pcie_width_max", "PCIe width")
    generations = f"generation {state.get('pcie_gen', '?')} of {_static(device, 'pcie_gen_max') or '?'}"
    return pass_or_fail(
        subject,
        float(width) >= float(str(most)),
        f"x{width:g}, {generations} at idle",
        expected=f"x{most}, the maximum for this GPU in this slot",
        source=NVML,
        next_step="Reseat the board; check riser, slot and lspci -vv (LnkSta: downgraded)",
    )


@gpu_check("clock policy", "no power limit is below the board's default")
def judge_clocks(subject: str, device: Device) -> Outcome:
    """Check whether the power limit is below the board's default; the application clock is only shown."""
    limit, shipped = _static(device, "power_limit_w"), _static(device, "power_limit_default_w")
    application, most = _static(device, "clock_sm_application_mhz"), _static(device, "clock_sm_max_mhz")
    if not (isinstance(limit, (int, float)) and isinstance(shipped, (int, float))):
        lacking = "power_limit_w" if limit is None else "power_limit_default_w"
        return _lacks(subject, device, lacking, "power limit")
    clock = f", application clock {application:g} of {most:g} MHz" if _are_numbers(application, most) else ""
    return pass_or_fail(
        subject,
        limit >= shipped - ROUNDING_W,
        f"power limit {limit:g} W of {shipped:g} W{clock}",
        expected=f"the {shipped:g} W that it ships with, or more",
        source=NVML,
        next_step=f"nvidia-smi -pl {shipped:g} as root (amd-smi set --power-cap {shipped:g}), or state the "
        "lower limit in your own rules",
    )


def _are_numbers(*values: object) -> bool:
    return all(isinstance(value, (int, float)) for value in values)


@gpu_check(
    "memory health", "no GPU has failed memory, memory awaiting a reset, or uncorrectable memory errors"
)
def judge_memory(subject: str, device: Device) -> Outcome:
    """Check for rows that failed or are pending a reset, and for uncorrectable errors."""
    state = device.get("state") or {}
    counters = {name: state[name] for name in MEMORY_COUNTERS if state.get(name) is not None}
    bad = [f"{name} {value:g}" for name, value in counters.items() if value]
    lacks = [_lacks(subject, device, name, name) for name in MEMORY_COUNTERS if name not in counters]
    unread = next((outcome for outcome in lacks if outcome.status == "ERROR"), None)
    if not bad and (unread is not None or not counters):
        return unread or lacks[0]
    without = "".join(f"; {outcome.reason}" for outcome in lacks)
    return pass_or_fail(
        subject,
        not bad,
        (", ".join(bad) or f"none of {', '.join(counters)}") + without,
        expected="0 of each",
        source="https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/",
        next_step="Drain the host and reset the GPU; report failed rows to the vendor",
        responsible="vendor" if state.get("remapped_rows_failed") else "administrator",
    )


@check("nvlink", "GPUs of a type have the same number of links up")
def judge_nvlink(facts: FleetFacts) -> Sequence[Outcome]:
    """Check whether each GPU has as many active NVLink or xGMI links as most GPUs of its type."""
    groups = gpus_by_type(facts).values()
    return with_unlisted((outcome for group in groups for outcome in _links_of_type(group)), facts)


def _links_of_type(group: dict[str, Device]) -> list[Outcome]:
    links = {
        subject: (device.get("state") or {}).get("nvlink_links_active") for subject, device in group.items()
    }
    times = Counter(number for number in links.values() if number is not None)
    most = max(times, default=0)
    return [
        _lacks(subject, group[subject], "nvlink_links_active", "links")
        if number is None
        else not_applicable(f"no link of {group[subject].get('name')} is up or present", subject)
        if not most
        else pass_or_fail(
            subject,
            number == most,
            f"{number:g} links up",
            expected=f"{most:g}, like {times[most]} of {times.total()} of its type",
            source="the other GPUs of its type in the same run",
            next_step="nvidia-smi nvlink -s (amd-smi xgmi); reset the GPU, then check the fabric manager",
        )
        for subject, number in links.items()
    ]
