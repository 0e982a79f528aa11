"""How checks answer: with a majority, with evidence that there is nothing to check, or why nobody knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuproof.records.outcome import Actor, Outcome
from gpuproof.verdict.facts import FleetFacts

Device = Mapping[str, Any]


def nothing_to_check(reason: str, subject: str = "whole") -> Outcome:
    """Return that a check does not apply; the reason is its evidence."""
    return Outcome(status="NOT-APPLICABLE", subject=subject, reason=reason)


def not_told(subject: str, reason: str, next_step: str) -> Outcome:
    """Return that what the check needs is not known."""
    return Outcome(
        status="ERROR", subject=subject, reason=reason, next_step=next_step, responsible="administrator"
    )


def told(
    subject: str,
    is_good: bool,
    measured: str,
    *,
    expected: str,
    source: str,
    next_step: str,
    responsible: Actor = "administrator",
    warns: bool = False,
) -> Outcome:
    """Return PASS, or FAIL (WARN where it `warns`) with who does what."""
    return Outcome(
        status="PASS" if is_good else "WARN" if warns else "FAIL",
        subject=subject,
        measured=measured,
        expected=expected,
        source=source,
        next_step=None if is_good else next_step,
        responsible=None if is_good else responsible,
    )


def listed_gpus(facts: FleetFacts) -> Iterator[tuple[str, Device]]:
    """Yield each GPU that a driver listed, by the subject that its measures have; MIG instances apart."""
    for host, found in facts.hosts.items():
        seen = {str(device.get("index")): device.get("uuid") for device in found.get("devices") or ()}
        for device in (found.get("accelerators") or {}).get("devices") or ():
            if "mig_parent_uuid" in (device.get("static") or {}):
                continue
            here = seen.get(str(device.get("framework_index"))) or device.get("uuid")
            yield f"host/{host}/gpu/{here or device['physical_index']}", device


def no_gpu(facts: FleetFacts) -> Outcome:
    """Return that no host has a GPU, with what their drivers say."""
    reasons = {
        f"{vendor}: {reason}"
        for found in facts.hosts.values()
        for vendor, reason in ((found.get("accelerators") or {}).get("absent") or {}).items()
    }
    if not facts.hosts:
        return not_told(
            "whole",
            "no host reported its environment",
            "Run it again: each host then reports its environment",
        )
    return nothing_to_check(f"no driver lists a GPU ({'; '.join(sorted(reasons)) or 'none is loaded'})")
