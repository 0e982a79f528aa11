"""More hosts than are needed: on which to run, and which are the spares.

A host may be chosen if it passed whatever was judged of it; one that failed, or was left undecided, is not.
Of those that passed the ones with the smallest loss come first: how far the lowest of a host's rates lies
under the middle of all hosts' (the worst kind of rate counts). So small a difference may be chance: it only
says whom to leave where all are good.

Figures that others shared: while somebody else uses a GPU, how slow it is says nothing of the GPU.

A figure that failed while other processes used the device becomes an ERROR: it could not be judged. A node
must not be drained for the work of its users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from gpuproof.records.outcome import Judged, kind_of, not_judged
from gpuproof.records.result import Measure
from gpuproof.suites.base import Export
from gpuproof.suites.results import json_export
from gpuproof.suites.validate.drain import node_of
from gpuproof.suites.validate.measured import StageResult, measures_of
from gpuproof.verdict.rollup import Branch

CHOSEN = "chosen-hosts"
NOT_TOLD = ("place", "address", "instance_id")
"""Keys of a host in run.json that an inventory has otherwise, or not at all."""
NODES = "nodelist"
"""The key of a scheduler's options in run.json by which it is told the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenHosts:
    """On which hosts to run."""

    num_needed: int
    chosen: tuple[str, ...]
    """The best of those that passed, in the order of the inventory; fewer than needed where too few did."""
    spares: tuple[str, ...]
    """Hosts that passed and are not needed, the best first."""
    not_passed: tuple[str, ...]
    losses: Mapping[str, float]
    """Of hosts that passed: how far under the middle of all the lowest of its rates lies, as a share."""

    @property
    def is_enough(self) -> bool:
        """Whether as many hosts passed as are needed."""
        return len(self.chosen) == self.num_needed


def choose_hosts(
    hosts: Sequence[str], tree: Branch, measures: Sequence[Measure], *, num_spares: int
) -> ChosenHosts:
    """Choose all but `num_spares` of the hosts by what was judged and measured of each."""
    stands = {node_of(branch.subject): branch.standing for branch in tree.branches}
    passed = [host for host in hosts if stands.get(host) == "passed"]
    losses = losses_of(measures)
    order = sorted(passed, key=lambda host: losses.get(host, 0.0))
    num_needed = len(hosts) - num_spares
    best = order[:num_needed]
    return ChosenHosts(
        num_needed=num_needed,
        chosen=tuple(host for host in hosts if host in best),
        spares=tuple(order[num_needed:]),
        not_passed=tuple(host for host in hosts if host not in passed),
        losses={host: losses.get(host, 0.0) for host in passed},
    )


def losses_of(measures: Sequence[Measure]) -> dict[str, float]:
    """Return by host how far its worst rate lies under the middle of all hosts', as a share."""
    lowest: dict[tuple[object, ...], dict[str, float]] = {}
    for measure in measures:
        host = node_of(measure.subject)
        if host is None or measure.value is None or measure.better != "higher":
            continue
        of_kind = lowest.setdefault(_kind(measure), {})
        of_kind[host] = min(measure.value, of_kind.get(host, measure.value))
    losses: dict[str, float] = {}
    for values in lowest.values():
        middle = median(values.values())
        for host, value in values.items() if middle > 0 else ():
            losses[host] = max(1 - value / middle, losses.get(host, 1 - value / middle))
    return losses


def _kind(measure: Measure) -> tuple[object, ...]:
    """Say what a measure is of, whichever host it was taken on."""
    labels = tuple(sorted((name, str(value)) for name, value in measure.labels.items() if name != "case"))
    return measure.name, measure.unit, kind_of(measure.subject), labels


def lines_of(hosts: ChosenHosts) -> Iterator[str]:
    """Yield what a report says of the choice."""
    if not hosts.is_enough:
        yield f"{hosts.num_needed} hosts are needed, and {len(hosts.chosen)} passed: too few to run on"
    yield f"run on: {_names(hosts.chosen)}"
    yield f"spares that passed: {_names(hosts.spares)}"
    yield f"did not pass: {_names(hosts.not_passed)}"


def _names(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) or "none"


def chosen_exports(chosen: ChosenHosts, description: Mapping[str, Any]) -> Iterator[Export]:
    """Yield the hosts to run on: names, and what --on takes; nothing where too few passed."""
    if not chosen.is_enough:
        return
    yield Export(name=f"{CHOSEN}.txt", content="".join(f"{host}\n" for host in chosen.chosen))
    schedulers = {
        key: options for key, options in description.items() if isinstance(options, dict) and NODES in options
    }
    for name, recorded in schedulers.items():
        options = {key: value for key, value in recorded.items() if value is not None}
        yield json_export(f"{CHOSEN}.{name}.json", {**options, NODES: ",".join(chosen.chosen)})
    if not schedulers and (hosts := description.get("fleet", {}).get("hosts")):
        entries = [_entry(host) for host in hosts if host["name"] in chosen.chosen]
        yield json_export(f"{CHOSEN}.json", {"hosts": entries})


def _entry(host: Mapping[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in host.items() if value is not None and key not in NOT_TOLD}
    return {"host": host["address"], **options}


NEIGHBOURS = "gpu-neighbours"
"""The code of the doubt."""


def without_shared(judged: Sequence[Judged], results: Sequence[StageResult]) -> list[Judged]:
    """Turn failures of figures that others shared into errors."""
    shared = dict(_shared_figures(results))
    return [_as_error(item, why) if (why := shared.get(_figure(item))) else item for item in judged]


def _figure(item: Judged) -> tuple[str, float | None]:
    is_figure = item.outcome.status == "FAIL" and item.basis != "none"
    return item.outcome.subject, item.outcome.measured_value if is_figure else None


def _shared_figures(results: Sequence[StageResult]) -> Iterator[tuple[tuple[str, float | None], str]]:
    """Yield the figures of launches beside which others used a device, each with who did."""
    for one in results:
        doubts = () if one.result is None else one.result.doubts
        why = next((doubt.reason for doubt in doubts if doubt.code == NEIGHBOURS), None)
        for measure in measures_of(one) if why is not None else ():
            if measure.value is not None and why is not None:
                yield (measure.subject, measure.value), why


def _as_error(item: Judged, why: str) -> Judged:
    reason = f"{item.outcome.summary}, while {why}: whose fault it is cannot be told"
    outcome = not_judged(item.outcome.subject, reason, "Measure again once they have ended")
    return replace(item, outcome=replace(outcome, records=item.outcome.records))
