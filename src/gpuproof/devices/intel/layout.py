"""Where xe and i915 keep what is the same in both: clocks, idle time, throttle reasons."""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.records.readings import ThrottleReason


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelLayout:
    """File names of the first GT, which runs compute."""

    gt_of_card: bool
    """Whether they lie below cardN itself, and not below its PCI device."""
    actual_clock: str
    """The clock that runs, not the one that was asked for."""
    highest_clock: str
    lowest_clock: str
    idle_ms: str
    throttle_prefix: str
    reason_prefix: str


LAYOUTS = {
    "xe": IntelLayout(
        gt_of_card=False,
        actual_clock="tile0/gt0/freq0/act_freq",
        highest_clock="tile0/gt0/freq0/rp0_freq",
        lowest_clock="tile0/gt0/freq0/rpn_freq",
        idle_ms="tile0/gt0/gtidle/idle_residency_ms",
        throttle_prefix="tile0/gt0/freq0/throttle/",
        reason_prefix="reason_",
    ),
    "i915": IntelLayout(
        gt_of_card=True,
        actual_clock="gt/gt0/rps_act_freq_mhz",
        highest_clock="gt/gt0/rps_RP0_freq_mhz",
        lowest_clock="gt/gt0/rps_RPn_freq_mhz",
        idle_ms="gt/gt0/rc6_residency_ms",
        throttle_prefix="gt/gt0/throttle_reason_",
        reason_prefix="",
    ),
}

THROTTLE_FILES: dict[str, ThrottleReason] = {
    "pl1": "power_cap",
    "pl2": "power_cap",
    "pl4": "current_limit",
    "thermal": "thermal_hardware",
    "prochot": "hardware_slowdown",
    "ratl": "thermal_hardware",
    "vr_thermalert": "voltage_regulator",
    "vr_tdc": "current_limit",
}
