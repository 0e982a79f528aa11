"""Which nodes to run on and which to drain, from what was judged of each; nothing is drained.

A node to drain has a reason in one line that begins with `[node_problem]` where the node, or a part of it, is
to be repaired, and with `[user_problem]` where all checks that failed there say that users are to act. What
could not be judged is no reason, nor is a figure that failed while other processes used the device: how slow
it was then says nothing of the GPU, and a node must not be drained for the work of its users.

Where hosts are spare, one may be chosen if it passed whatever was judged of it; one that failed, or was left
undecided, is not. Of those that passed the ones with the smallest loss come first: how far the lowest of a
host's rates lies under the middle of all hosts' (the worst kind of rate counts). So small a difference may be
chance: it only says whom to leave where all are good.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from gpuproof.records.outcome import Judged, kind_of, not_judged, parent_of
from gpuproof.records.result import WHOLE, Measure
from gpuproof.records.subject_names import named
from gpuproof.suites.base import Export
from gpuproof.suites.results import json_export
from gpuproof.suites.validate.measured import StageResult, measures_of
from gpuproof.verdict.rollup import Branch

Problem = Literal["node_problem", "user_problem"]
MOST_LETTERS = 200
"""Of a reason: schedulers show it in a column."""
CHOSEN = "chosen-hosts"
NOT_TOLD = ("place", "address", "instance_id")
"""Keys of a host in run.json that an inventory has otherwise, or not at all."""
NODES = "nodelist"
"""The key of a scheduler's options in run.json by which it is told the nodes."""
NEIGHBOURS = "gpu-neighbours"
"""The code of the doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeToDrain:
    """A node that failed."""

    node: str
    problem: Problem
    reason: str
    """One line, with the problem before it."""
    findings: tuple[str, ...]
    """Every required check that failed there, in full."""


def nodes_to_drain(judged: Sequence[Judged], indices: Mapping[str, int]) -> tuple[NodeToDrain, ...]:
    """Return the nodes of which a required check failed: of themselves, of a device or a link inside them.

    What is slow between nodes, or over all, is of none of them. `indices` has the number of each GPU.
    """
    by_node: dict[str, list[Judged]] = {}
    for item in judged:
        node = node_of(item.outcome.subject)
        if node is not None and item.is_required and item.outcome.status == "FAIL":
            by_node.setdefault(node, []).append(item)
    return tuple(_entry(node, failures, indices) for node, failures in by_node.items())


def node_of(subject: str) -> str | None:
    """Return the node that a subject is, or lies in; None where it is of several or of none.

    >>> node_of("host/a/gpu/0"), node_of("host/a"), node_of("link/a>b"), node_of("whole")
    ('a', 'a', None, None)
    """
    of = subject if subject.startswith("host/") else parent_of(subject)
    return None if of == WHOLE else of.split("/")[1]


def _entry(node: str, failures: Sequence[Judged], indices: Mapping[str, int]) -> NodeToDrain:
    problem = problem_of(failures)
    findings = tuple(_finding(item, indices) for item in failures)
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return NodeToDrain(
        node=node,
        problem=problem,
        reason=one_line(f"[{problem}] gpuproof: {findings[0]}", room=MOST_LETTERS - len(more)) + more,
        findings=findings,
    )


def problem_of(failures: Sequence[Judged]) -> Problem:
    """Say who is to act on checks that failed: users alone, or whoever looks after the node."""
    return "user_problem" if all(x.outcome.responsible == "user" for x in failures) else "node_problem"


def _finding(item: Judged, indices: Mapping[str, int]) -> str:
    part = named(item.outcome.subject, indices, with_identity=True).partition(" on ")[0]
    of = f"{part}: " if "/gpu/" in item.outcome.subject else ""
    return f"{of}{item.name}: {item.outcome.measured}, expected {item.outcome.expected}"


def one_line(text: str, *, room: int = MOST_LETTERS) -> str:
    r"""Put a text on one line without control characters, cut where it is too long.

    >>> one_line("a \n b"), one_line("abcdef", room=4)
    ('a b', 'abc…')
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    line = " ".join(printable.split())
    return line if len(line) <= room else f"{line[: room - 1]}…"


def drain_lines(nodes: Sequence[NodeToDrain]) -> Iterator[str]:
    """Yield the command that would drain each node in Slurm, as a shell takes it.

    >>> found = NodeToDrain(node="n1", problem="node_problem", reason="[node_problem] slow", findings=())
    >>> print(next(drain_lines([found])))
    scontrol update NodeName=n1 State=DRAIN 'Reason=[node_problem] slow'
    """
    for node in nodes:
        words = [f"NodeName={node.node}", "State=DRAIN", f"Reason={node.reason}"]
        yield shlex.join(["scontrol", "update", *words])


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
        entries = [_host_entry(host) for host in hosts if host["name"] in chosen.chosen]
        yield json_export(f"{CHOSEN}.json", {"hosts": entries})


def _host_entry(host: Mapping[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in host.items() if value is not None and key not in NOT_TOLD}
    return {"host": host["address"], **options}


def without_shared(judged: Sequence[Judged], results: Sequence[StageResult]) -> list[Judged]:
    """Turn failures of figures that others shared into errors."""
    shared = dict(_shared_values(results))
    return [_as_error(item, why) if (why := shared.get(_value(item))) else item for item in judged]


def _value(item: Judged) -> tuple[str, float | None]:
    is_figure = item.outcome.status == "FAIL" and item.basis != "none"
    return item.outcome.subject, item.outcome.measured_value if is_figure else None


def _shared_values(results: Sequence[StageResult]) -> Iterator[tuple[tuple[str, float | None], str]]:
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
