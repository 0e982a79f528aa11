"""A launcher and a listener for tests of the campaign: nothing is started; a script says how cases end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuproof.launchers.base import HostError
from gpuproof.records.case import Case, Placed
from gpuproof.records.collected import CaseRecords
from gpuproof.records.journal import encode
from gpuproof.suites.base import HostPlace
from records_by_hand import Story, failure, window


@dataclass
class FakeLaunch:
    command: str = "true"
    placed: Placed | None = None
    status: int | None = None
    error: HostError | None = None
    waits_for: str | None = None
    is_over: bool = False
    ended: list[float] = field(default_factory=list)

    def end(self, grace_s: float) -> None:
        self.ended.append(grace_s)
        self.is_over = True


class FakeLauncher:
    """Ends what runs, one launch each time it is waited for; `script` says how, by the name of the case."""

    world_size = None

    def __init__(self, names: str = "a", *, max_busy: int | None = None, **script: Any) -> None:
        self.names = list(names)
        self.max_busy = max_busy
        self.script = script
        self.told: list[str] = []
        self.running: list[tuple[Case, tuple[str, ...], Path, FakeLaunch]] = []
        self.gone: dict[str, HostError] = {}
        self.num_waits = 0

    def places(self) -> list[HostPlace]:
        return [HostPlace(name=name) for name in self.names]

    def lost(self) -> dict[str, HostError]:
        return self.gone

    def start(self, case: Case, hosts: Sequence[str], folder: Path) -> FakeLaunch:
        names = tuple(host or "this-machine" for host in hosts) or ("of-the-queue",)
        launch = FakeLaunch(placed=Placed(hosts=names, ranks_per_host=1))
        self.told.append(f"{case.case_id}@{'+'.join(hosts)}")
        self.running.append((case, tuple(hosts), folder, launch))
        return launch

    def wait(self, timeout_s: float) -> None:
        self.num_waits += 1
        if not self.running:
            return
        case, hosts, folder, launch = self.running.pop(0)
        how = self.script.get(case.case_id, "done")
        self.told.append(f"{case.case_id} {how}")
        if how == "lost":
            launch.error = HostError("no answer", host=hosts[0], stage="setup")
            self.gone[hosts[0]] = launch.error
            launch.is_over = True
            return
        if how == "interrupt":
            self.running.insert(0, (case, hosts, folder, launch))
            self.script[case.case_id] = "hang"
            raise KeyboardInterrupt
        if how == "hang":
            self.running.append((case, hosts, folder, launch))
            return
        ranks = Story(windows=[window(rank) for rank in range(max(1, len(hosts)))])
        told = ranks.records().records if how == "done" else (failure(how),)
        text = "nonsense\n\n" if how == "damage" else "".join(f"{encode(record)}\n" for record in told)
        (folder / "rank-0.jsonl").write_text(text)
        launch.status = 0 if how == "done" else 1

    def notes(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        return


class Quiet:
    def __init__(self) -> None:
        self.positions: list[tuple[int, int]] = []
        self.failed: list[str] = []
        self.said: list[str] = []

    def says(self, line: str) -> None:
        self.said.append(line)

    def case_begins(
        self, case: Case, *, hosts: Sequence[str], position: int, total: int, more: bool = False
    ) -> None:
        self.positions.append((position, total))

    def case_advances(self, case: Case, records: Sequence[Any]) -> None:
        return

    def case_ends(self, records: CaseRecords) -> None:
        return

    def host_failed(self, error: HostError) -> None:
        self.failed.append(str(error))
