"""The pictures of a validation: hosts by checks, who is slower by how much, and the tests for blame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuproof.base.groups import grouped
from gpuproof.records.outcome import Judged, Outcome, parent_of
from gpuproof.records.page import Chart, HeatCell, HeatMap, Reference
from gpuproof.records.result import WHOLE, Measure, MeasureInterval
from gpuproof.suites.validate.blamed import BLAME
from gpuproof.verdict.measure_charts import MOST_ROWS, axis_of, bars, intervals
from gpuproof.verdict.page import TONES
from gpuproof.verdict.rollup import listed

ORDER = ("FAIL", "ERROR", "WARN", "PASS", "SKIP", "NOT-APPLICABLE")
"""The gravest first: a cell has the word of the gravest of its outcomes."""
WORDS = {"NOT-APPLICABLE": "n/a", "SKIP": "skip"}
ALL = "all together"
AROUND = (0.9, 1.1)
"""Shares of what peers reached that a chart shows at least: less would blow up what is no difference."""
MOST_PEERS = 4
"""Charts of subjects against their peers, those in which one is slow first."""


def heat_map(outcomes: Sequence[Judged]) -> Iterator[HeatMap]:
    """Yield the checks that judged something, by hosts, of which alike ones share a column; none of one."""
    by_check = grouped((judged.name, judged) for judged in outcomes)
    judging = {
        name: judged
        for name, judged in by_check.items()
        if any(one.outcome.status in ORDER[:4] for one in judged)
    }
    by_host = grouped((_host(one), one) for judged in judging.values() for one in judged)
    if len(by_host.keys() - {ALL}) < 2:
        return
    hosts = grouped((_told(judged), host) for host, judged in by_host.items())
    columns = sorted(map(set, hosts.values()), key=lambda same: _gravest(by_host, same))[:MOST_ROWS]
    rows = [
        (name, tuple(_cell([one for one in judged if _host(one) in same]) for same in columns))
        for name, judged in sorted(judging.items(), key=lambda item: min(map(_gravity, item[1])))
    ]
    names = tuple(listed(sorted(same)) for same in columns)
    yield HeatMap(title="Hosts by checks", columns=names, rows=tuple(rows))


def _host(judged: Judged) -> str:
    subject = judged.outcome.subject
    host = subject if subject.startswith("host/") and "/gpu/" not in subject else parent_of(subject)
    return ALL if host == WHOLE else host.removeprefix("host/")


def _told(judged: Sequence[Judged]) -> object:
    """Return what is said of a host: of equal ones a column says it of all."""
    passed = (one for one in judged if one.outcome.status == "PASS")
    others = (one for one in judged if one.outcome.status != "PASS")
    texts = frozenset((one.name, one.outcome.status, one.outcome.summary) for one in others)
    return texts, frozenset(one.name for one in passed), _host(judged[0]) == ALL


def _gravity(judged: Judged) -> int:
    return ORDER.index(judged.outcome.status)


def _gravest(by_host: dict[str, list[Judged]], hosts: set[str]) -> int:
    return min(_gravity(one) for host in hosts for one in by_host[host])


def _cell(judged: Sequence[Judged]) -> HeatCell | None:
    if not judged:
        return None
    status = min(judged, key=_gravity).outcome.status
    others = [one.outcome for one in judged if one.outcome.status != "PASS"]
    lines = dict.fromkeys(
        f"{_short(outcome)}: {outcome.summary}{f' → {outcome.next_step}' if outcome.next_step else ''}"
        for outcome in others
    )
    return HeatCell(word=WORDS.get(status, status), tone=TONES[status], lines=tuple(lines))


def peer_charts(outcomes: Sequence[Judged]) -> Iterator[Chart]:
    """Yield what each subject measured against what its peers did: who is slower, and by how much."""
    peers = [one for one in outcomes if one.basis == "peers" and one.outcome.measured_value is not None]
    by_check = grouped((judged.name, judged) for judged in peers)
    by_gravity = sorted(by_check.items(), key=lambda item: min(map(_gravity, item[1])))
    for name, judged in [item for item in by_gravity if len(item[1]) > 1][:MOST_PEERS]:
        shown = sorted(judged, key=lambda one: (_gravity(one), one.outcome.measured_value or 0.0))[:MOST_ROWS]
        expected = [one.outcome.expected_value for one in shown if one.outcome.expected_value is not None][:1]
        reach = tuple(share * value for value in expected for share in AROUND)
        rows = [(f"{_short(one.outcome)} {one.outcome.status}", _as_measure(one.outcome)) for one in shown]
        lines = (Reference(label="of its peers", x=x) for x in expected)
        title = f"{name}: {len(shown)} of {len(judged)}" if len(shown) < len(judged) else name
        chart = intervals(title, replace(axis_of(rows[0][1], "measured"), reach=reach), rows, *lines)
        yield replace(chart, is_in_a_table=True)


def _short(outcome: Outcome) -> str:
    return outcome.subject


def _as_measure(outcome: Outcome) -> Measure:
    """Return what was judged as a measure, whose interval a chart can draw."""
    low, high = outcome.measured_low, outcome.measured_high
    interval = None
    if low is not None and high is not None:
        interval = MeasureInterval(low=low, high=high, level=0.95, kind="bound", method="of the rule")
    value, unit = outcome.measured_value, outcome.unit or ""
    return Measure(name="measured", value=value, unit=unit, text=outcome.measured or "", interval=interval)


def blame_charts(measures: Sequence[Measure]) -> Iterator[Chart]:
    """Yield the tests of each search for who slows a collective, in the order in which they ran."""
    searches = grouped((m.labels[BLAME], m) for m in measures if BLAME in m.labels)
    for name, tests in searches.items():
        rows = [(str(test.labels["members"]), test) for test in tests[:MOST_ROWS]]
        if chart := bars(f"Tests of {name}", rows, "bytes a second through the group"):
            yield chart
