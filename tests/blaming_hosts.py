"""The search over real hosts: started beside network namespaces, it runs each test as a job over ssh.

`python blaming_hosts.py FILE.json` prints a line as each launch begins and ends, and last what was found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from gpuproof.campaign import create_run, launch_all
from gpuproof.config.inventory import InventoryHost
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.launchers.base import HostError
from gpuproof.launchers.ssh.hosts import SshOptions
from gpuproof.launchers.ssh.launcher import SshLauncher
from gpuproof.records.case import Case
from gpuproof.records.codec import to_json
from gpuproof.records.collected import CaseRecords
from gpuproof.suites.base import AfterFailure, HostPlace, LaunchKey, Remaining
from gpuproof.suites.validate.blaming import Blaming, blame_hosts
from gpuproof.verdict.blame.naming import blamed


class BlameSuite:
    """Nothing but the search."""

    name = "blame"
    summary = "who is slow"
    command = "run"
    scope: Literal["each_host", "whole"] = "whole"
    options: type | None = None

    def __init__(self, noise: float, slowdown: float) -> None:
        self._noise, self._slowdown = noise, slowdown
        self.state: Blaming | None = None

    def answers(self, config: RunConfig) -> bool:
        return False

    def begin(self, config: RunConfig, places: Sequence[HostPlace]) -> Blaming:
        return blame_hosts(config, places, noise=self._noise, slowdown=self._slowdown)

    def settle(self, state: Blaming, launch: CaseRecords) -> Blaming:
        self.state = state.settle(launch)
        return self.state

    def next(
        self, state: Blaming, running: Mapping[LaunchKey, Case], time_left_s: float | None
    ) -> Iterator[Case]:
        return state.next(running)

    def remaining(self, state: Blaming) -> Remaining:
        return Remaining(num_launches=1)

    def on_failure(self, launch: CaseRecords) -> AfterFailure:
        return "skip"

    def conclude(self, evidence: Any) -> Any:
        raise AssertionError("this program launches, and concludes nothing")

    def page(self, result: Any) -> Any:
        raise AssertionError("this program launches, and concludes nothing")


class Lines:
    """Says what begins and ends."""

    def says(self, line: str) -> None:
        return

    def case_begins(self, case: Case, *, hosts: Sequence[str], position: int, total: int) -> None:
        print("begins", *hosts, flush=True)

    def case_advances(self, case: Case, records: Sequence[Any]) -> None:
        return

    def case_ends(self, records: CaseRecords) -> None:
        failure = records.primary_failure
        told = "" if failure is None else failure.message
        print("ends", *records.case.placement.hosts, records.status, told, flush=True)

    def host_failed(self, error: HostError) -> None:
        print("host failed", error, flush=True)


def main() -> None:
    """Search, and print what was found."""
    asked = json.loads(Path(sys.argv[1]).read_text())
    hosts = [InventoryHost(place="x:1", python=sys.executable, **host) for host in asked["hosts"]]
    options = SshOptions(key=asked["key"], known_hosts=asked["known_hosts"], attempts=1)
    loaded = load_config("collectives", asked["words"])
    suite = BlameSuite(asked["noise"], asked["slowdown"])
    archive = Path(asked["archive"]).read_bytes()
    with closing(SshLauncher(hosts, options, archive=archive)) as launcher:
        run = create_run(
            loaded.config, origins=loaded.origins, source=loaded.source, places=launcher.places()
        )
        launch_all(run, suite=suite, launcher=launcher, progress=Lines())
    assert suite.state is not None
    findings = suite.state.search.findings()
    named = [to_json(each) for each in blamed(findings)]
    tests = [[*test.group.members, test.group.one_way, test.value] for test in findings.tests]
    undecided = [[*each.members, each.why] for each in findings.undecided]
    print(json.dumps({"named": named, "tests": tests, "undecided": undecided}))


if __name__ == "__main__":
    main()
