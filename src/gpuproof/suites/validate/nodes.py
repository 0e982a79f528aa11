"""Which nodes to run on and which to drain, based on their outcomes; nothing is drained here.

A node to drain has a one-line reason that starts with `[node_problem]` if the node, or a part of it, needs
repair, and with `[user_problem]` if all checks that failed there require action from users. A check without a
verdict is not a reason to drain, nor is a metric that failed while other processes used the device: its speed
is then not evidence about the GPU, and a node must not be drained because of its users' workloads.

If there are spare hosts, a host may be chosen only if it passed all its checks; one that failed or is
undecided may not. Among those that passed, hosts with the smallest loss come first. The loss is how far the
lowest of a host's rates falls below the median of all hosts (for the worst kind of rate). Such small
differences may be chance: they only decide which host to leave out if all are good.
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
"""Maximum length of a reason, since schedulers show it in a column."""
CHOSEN = "chosen-hosts"
NOT_TOLD = ("place", "address", "instance_id")
"""Keys of a host in run.json that have a different name in an inventory, or do not exist there."""
NODES = "nodelist"
"""Key of the scheduler's options in run.json; if it is used, these options pass the nodes to the
scheduler."""
NEIGHBOURS = "gpu-neighbours"
"""The code of the warning about other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeToDrain:
    """A node to drain, because it failed."""

    node: str
    problem: Problem
    reason: str
    """One line that starts with the problem."""
    findings: tuple[str, ...]
    """Every required check that failed on the node, in full."""


def nodes_to_drain(judged: Sequence[Judged], indices: Mapping[str, int]) -> tuple[NodeToDrain, ...]:
    """Return nodes with a failed required check: of the node itself, or of a device or link in it.

    Slowness between nodes, or of the whole cluster, belongs to no single node. `indices` maps each GPU to its
    index.
    """
    by_node: dict[str, list[Judged]] = {}
    for item in judged:
        node = node_of(item.outcome.subject)
        if node is not None and item.is_required and item.outcome.status == "FAIL":
            by_node.setdefault(node, []).append(item)
    return tuple(_entry(node, failures, indices) for node, failures in by_node.items())


def node_of(subject: str) -> str | None:
    """Return the node that a subject is, or belongs to; None if it spans several or none.

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
    """Return who should act on failed checks: only users, or the node's operator."""
    return "user_problem" if all(x.outcome.responsible == "user" for x in failures) else "node_problem"


def _finding(item: Judged, indices: Mapping[str, int]) -> str:
    part = named(item.outcome.subject, indices, with_identity=True).partition(" on ")[0]
    of = f"{part}: " if "/gpu/" in item.outcome.subject else ""
    return f"{of}{item.name}: {item.outcome.measured}, expected {item.outcome.expected}"


def one_line(text: str, *, room: int = MOST_LETTERS) -> str:
    r"""Put a text on one line without control characters, truncated if it is too long.

    >>> one_line("a \n b"), one_line("abcdef", room=4)
    ('a b', 'abc…')
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    line = " ".join(printable.split())
    return line if len(line) <= room else f"{line[: room - 1]}…"


def drain_lines(nodes: Sequence[NodeToDrain]) -> Iterator[str]:
    """Yield the Slurm command that would drain each node, quoted for a shell.

    >>> found = NodeToDrain(node="n1", problem="node_problem", reason="[node_problem] slow", findings=())
    >>> print(next(drain_lines([found])))
    scontrol update NodeName=n1 State=DRAIN 'Reason=[node_problem] slow'
    """
    for node in nodes:
        words = [f"NodeName={node.node}", "State=DRAIN", f"Reason={node.reason}"]
        yield shlex.join(["scontrol", "update", *words])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenHosts:
    """Which hosts to run on."""

    num_needed: int
    chosen: tuple[str, ...]
    """The best of the hosts that passed, in inventory order; fewer than needed if too few passed."""
    spares: tuple[str, ...]
    """Hosts that passed but are not needed, best first."""
    not_passed: tuple[str, ...]
    losses: Mapping[str, float]
    """How far the lowest rate of each host that passed is below the median of all hosts, as a fraction."""

    @property
    def is_enough(self) -> bool:
        """Whether enough hosts passed."""
        return len(self.chosen) == self.num_needed


def choose_hosts(
    hosts: Sequence[str], tree: Branch, measures: Sequence[Measure], *, num_spares: int
) -> ChosenHosts:
    """Choose all but `num_spares` of the hosts, using each host's verdict and measurements."""
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
    """Return, per host, how far its worst rate is below the median of all hosts, as a fraction."""
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
    """Return a key that identifies a measure regardless of its host."""
    labels = tuple(sorted((name, str(value)) for name, value in measure.labels.items() if name != "case"))
    return measure.name, measure.unit, kind_of(measure.subject), labels


def lines_of(hosts: ChosenHosts) -> Iterator[str]:
    """Yield the report's lines about the choice."""
    if not hosts.is_enough:
        yield f"{hosts.num_needed} hosts are needed, but only {len(hosts.chosen)} passed: too few to run on"
    yield f"run on: {_names(hosts.chosen)}"
    yield f"spares that passed: {_names(hosts.spares)}"
    yield f"did not pass: {_names(hosts.not_passed)}"


def _names(hosts: Sequence[str]) -> str:
    return ", ".join(hosts) or "none"


def chosen_exports(chosen: ChosenHosts, description: Mapping[str, Any]) -> Iterator[Export]:
    """Yield the hosts to run on: their names, and the argument for --on; none if too few passed."""
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
    """Turn metric failures into errors if other processes shared the device."""
    shared = dict(_shared_values(results))
    return [_as_error(item, why) if (why := shared.get(_value(item))) else item for item in judged]


def _value(item: Judged) -> tuple[str, float | None]:
    is_figure = item.outcome.status == "FAIL" and item.basis != "none"
    return item.outcome.subject, item.outcome.measured_value if is_figure else None


def _shared_values(results: Sequence[StageResult]) -> Iterator[tuple[tuple[str, float | None], str]]:
    """Yield metrics of launches in which other processes used a device, along with those processes."""
    for one in results:
        doubts = () if one.result is None else one.result.doubts
        why = next((doubt.reason for doubt in doubts if doubt.code == NEIGHBOURS), None)
        for measure in measures_of(one) if why is not None else ():
            if measure.value is not None and why is not None:
                yield (measure.subject, measure.value), why


def _as_error(item: Judged, why: str) -> Judged:
    reason = f"{item.outcome.summary}, while {why}: it cannot be determined which of the two is at fault"
    outcome = not_judged(item.outcome.subject, reason, "Measure again after they have exited")
    return replace(item, outcome=replace(outcome, records=item.outcome.records))
