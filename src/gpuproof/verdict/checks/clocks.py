"""Do the hosts' clocks agree? If not, records from several hosts cannot be put in order.

Input: launches across several hosts. All ranks of a launch end their window together, after waiting for each
other, and each rank reports its host's wall-clock time together with the time of the clock used to time
windows. So the window's end can be expressed on every host's wall clock, to within the duration of the last
wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from gpuproof.base.units import seconds
from gpuproof.records.collected import CaseRecords
from gpuproof.records.outcome import Outcome, not_applicable, pass_or_fail
from gpuproof.records.run import Start, Window
from gpuproof.verdict.check import check
from gpuproof.verdict.checks.answers import unanswered
from gpuproof.verdict.facts import FleetFacts

MOST_APART_S = 1.0
"""Maximum difference: clocks synchronised by NTP are off by milliseconds, and ranks that end together differ
by far less."""
NTP_PAGE = "https://www.rfc-editor.org/rfc/rfc5905"


@check("clocks", "the clocks of all hosts agree")
def judge_clock_agreement(facts: FleetFacts) -> Sequence[Outcome]:
    """Compare the wall clocks of all hosts at the end of windows that span the hosts."""
    if len(facts.all_hosts) < 2:
        return [not_applicable("one host: no other clock to compare with")]
    ahead_s: dict[str, float] = {}
    for launch in facts.launches:
        for host, off_s in _ahead_s(launch).items():
            ahead_s[host] = max(off_s, ahead_s.get(host, 0.0), key=abs)
    return [_of_host(host, ahead_s.get(host)) for host in facts.all_hosts]


def _ahead_s(launch: CaseRecords) -> Mapping[str, float]:
    """Return how many seconds each host's wall clock is ahead of the median; empty for a single host."""
    offsets = {start.rank: start.unix_s - start.monotonic_s for start in launch.of(Start)}
    ends: dict[str, list[float]] = {}
    for window in launch.of(Window):
        if window.rank in offsets:
            ends.setdefault(window.host, []).append(window.end_monotonic_s + offsets[window.rank])
    if len(ends) < 2:
        return {}
    by_host = {host: median(times) for host, times in ends.items()}
    middle = median(by_host.values())
    return {host: end - middle for host, end in by_host.items()}


def _of_host(host: str, ahead_s: float | None) -> Outcome:
    subject = f"host/{host}"
    if ahead_s is None:
        reason = "it finished no window of a launch across several hosts, which is needed to compare clocks"
        return unanswered(subject, reason, "Run a collective or a training job across all hosts")
    way = "ahead of" if ahead_s > 0 else "behind"
    return pass_or_fail(
        subject,
        abs(ahead_s) <= MOST_APART_S,
        f"its clock is {seconds(abs(ahead_s))} {way} the median of all hosts",
        expected=f"within {seconds(MOST_APART_S)} of it",
        source=NTP_PAGE,
        next_step="Start chrony or another NTP client there: chronyc tracking",
    )
