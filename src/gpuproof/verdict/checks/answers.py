"""How checks report that there is nothing to check, with evidence, or that something is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from gpuproof.records.outcome import Outcome, not_applicable, not_judged
from gpuproof.verdict.check import FactCheck, check
from gpuproof.verdict.facts import FleetFacts, HostFacts
from gpuproof.verdict.gpus import gpus_by_host, unlisted_gpus

Device = Mapping[str, Any]
UNLISTED = "it ran or is visible, but no driver lists it"
MUTE = "it reported nothing about itself"
RUN_AGAIN = "Run it again: each host then reports its environment"


def unanswered(subject: str, reason: str, next_step: str) -> Outcome:
    """Report that information needed by the check is unknown."""
    return not_judged(subject, reason, next_step, "administrator")


def listed_gpus(facts: FleetFacts) -> Iterator[tuple[str, Device]]:
    """Yield each listed GPU that is to be checked, under the subject of its measures.

    For a partitioned GPU, these are the instances in use, and the GPU itself.
    """
    for gpus in gpus_by_host(facts).values():
        subjects = {*gpus.subjects, *gpus.divided}
        yield from ((subject, device) for subject, device in gpus.listed.items() if subject in subjects)


def gpus_by_type(facts: FleetFacts) -> dict[str, dict[str, Device]]:
    """Return the GPUs that drivers list, by type name and by subject."""
    types: dict[str, dict[str, Device]] = {}
    for subject, device in listed_gpus(facts):
        types.setdefault(str(device.get("name")), {})[subject] = device
    return types


def unlisted_outcomes(facts: FleetFacts) -> list[Outcome]:
    """Return an error for each silent host, and for each GPU that ran or is visible but not listed."""
    hosts = gpus_by_host(facts).values()
    return [
        *(unanswered(f"host/{gpus.host}", MUTE, RUN_AGAIN) for gpus in hosts if gpus.is_mute),
        *(
            unanswered(subject, UNLISTED, "Check it with: gpuproof doctor")
            for subject in unlisted_gpus(hosts)
        ),
    ]


def with_unlisted(outcomes: Iterable[Outcome], facts: FleetFacts) -> list[Outcome]:
    """Return outcomes for listed GPUs and for GPUs that could not be queried; or that there are none."""
    return [*outcomes, *unlisted_outcomes(facts)] or [no_gpu(facts)]


def no_gpu(facts: FleetFacts) -> Outcome:
    """Report that no host has a GPU, with the reason for each vendor."""
    reasons = {
        f"{vendor}: {reason}"
        for host_facts in facts.hosts.values()
        for vendor, reason in ((host_facts.get("accelerators") or {}).get("absent") or {}).items()
    }
    if not facts.hosts:
        return unanswered("whole", "no host reported its environment", RUN_AGAIN)
    return not_applicable(f"no driver lists a GPU ({'; '.join(sorted(reasons)) or 'none is loaded'})")


def gpu_check(name: str, summary: str) -> Callable[[Callable[[str, Device], Outcome]], FactCheck]:
    """Create a check of every expected GPU; the function below receives one GPU's subject and facts."""
    return lambda judge: check(name, summary)(
        lambda facts: with_unlisted((judge(subject, device) for subject, device in listed_gpus(facts)), facts)
    )


def of_hosts(facts: FleetFacts, judge: Callable[[str, HostFacts], Outcome]) -> list[Outcome]:
    """Evaluate every expected host from its subject and facts."""
    judged = [
        unanswered(f"host/{host}", MUTE, RUN_AGAIN) if node is None else judge(f"host/{host}", node)
        for host, node in facts.all_hosts.items()
    ]
    return judged or [no_gpu(facts)]


def host_check(
    name: str, summary: str, *, alone: str | None = None
) -> Callable[[Callable[[str, HostFacts], Outcome]], FactCheck]:
    """Create a check of every host; `alone` says why it does not apply to a single host."""

    def build(judge: Callable[[str, HostFacts], Outcome]) -> FactCheck:
        return check(name, summary)(
            lambda facts: (
                [not_applicable(f"one host: {alone}")]
                if alone is not None and len(facts.all_hosts) == 1
                else of_hosts(facts, judge)
            )
        )

    return build
