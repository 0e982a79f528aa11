"""Which nodes failed, and why, in the words of a scheduler: a list for whoever drains; nothing is drained.

In: the outcomes of a validation. Out: a node an entry, with a reason in one line that begins with
`[node_problem]` where the node, or a part of it, is to be repaired, and with `[user_problem]` where all
checks that failed there say that users are to act. What could not be judged is no reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuproof.records.outcome import Judged, parent_of
from gpuproof.records.result import WHOLE
from gpuproof.records.subject_names import named

Problem = Literal["node_problem", "user_problem"]
MOST_LETTERS = 200
"""Of a reason: schedulers show it in a column."""


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
