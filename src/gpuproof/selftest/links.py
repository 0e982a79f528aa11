"""A link between two hosts is slow: the search for who is to blame over a fleet that is made up.

The search asks for tests of groups as it does in a run; each is written as ranks would write it, and its
figure is read from these records.
"""

from __future__ import annotations

from pathlib import Path

from gpuproof.config.models import RunConfig
from gpuproof.records.collected import CaseRecords
from gpuproof.selftest.fleet import Fleet, Planted, records_of
from gpuproof.selftest.judging import COLLECTIVE_BYTES, Turned, judge_fleet
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate.blaming import blame_hosts
from gpuproof.verdict.blame.naming import blamed

HOSTS = tuple(f"node{number}" for number in range(1, 7))
NOISE, SLOWDOWN = 0.01, 0.1


def judge_links(folder: Path, *, slow: frozenset[str] = frozenset(), seed: int = 0) -> Turned:
    """Judge six hosts of which two may have a slow link between them; where they are not ready, search."""
    fleet = Fleet(hosts=HOSTS, num_devices=1, seed=seed, planted=Planted(slow_link=slow))
    judged = judge_fleet(fleet, folder)
    if judged.word == "READY":
        return judged
    places = [HostPlace(name=host, num_devices=1) for host in HOSTS]
    search = blame_hosts(_tests(), places, noise=NOISE, slowdown=SLOWDOWN)
    while not search.is_over:
        for case in list(search.next(())):
            search = search.settle(CaseRecords(case=case, records=tuple(records_of(fleet, case))))
    named = (f"{who.subject}: {who.evidence}" for who in blamed(search.search.findings()))
    return Turned(word=judged.word, against=(*judged.against, *named))


def _tests() -> RunConfig:
    """Return what groups are tested by: one operation of one size in which each rank sends to each."""
    size = {"min_bytes": COLLECTIVE_BYTES, "max_bytes": COLLECTIVE_BYTES}
    asked = {"kind": "collective", "collective": {"operations": ["all_to_all"], **size}}
    return RunConfig.model_validate({**asked, "distributed": {"nproc": 1}})
