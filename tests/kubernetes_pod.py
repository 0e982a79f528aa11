"""A pod for tests: its object, and the processes on this machine that stand for its containers."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kubernetes_controllers import Object

END_S = 300.0
"""A kubelet has less patience; here containers end by themselves, if later on a busy machine."""


@dataclass(kw_only=True)
class Pod:
    """One pod: its object, and the processes that stand for its containers."""

    body: Object
    folder: Path
    replaced: dict[str, str]
    agent: Path | None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    earlier: dict[str, Object] = field(default_factory=dict)
    """By container, how it ended before it was started again."""

    def words(self, words: list[str]) -> list[str]:
        """Return the words as they are run here."""
        here = [sys.executable if word == "python3" else self._here(word) for word in words]
        if self.agent is not None and "torch.distributed.run" in here:
            at = here.index("torch.distributed.run")
            here[at - 1 : at + 1] = [str(self.agent)]
        return here

    def environment(self, container: str) -> dict[str, str]:
        """Return the variables of a container."""
        (told,) = (told for told in self.body["spec"]["containers"] if told["name"] == container)
        return {**os.environ, **{variable["name"]: variable["value"] for variable in told["env"]}}

    def start(self, container: Object) -> None:
        """Start a container."""
        with (self.folder / f"{container['name']}.log").open("ab") as log:
            self.processes[container["name"]] = subprocess.Popen(
                self.words(container["command"]),
                env=self.environment(container["name"]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def restart(self) -> None:
        """Start once more, as the kubelet does, what has failed; after that it backs off."""
        if self.body["spec"]["restartPolicy"] != "OnFailure" or "deletionTimestamp" in self.body["metadata"]:
            return
        for container in self.body["spec"]["containers"]:
            name = container["name"]
            if name not in self.earlier and self.processes[name].poll():
                self.earlier[name] = ended(self.processes[name])
                self.start(container)

    def _here(self, word: str) -> str:
        for there, here in self.replaced.items():
            word = word.replace(there, here)
        return word

    def status(self) -> Object:
        """Return what the kubelet would say."""
        containers = []
        for name, process in self.processes.items():
            last = {"lastState": self.earlier[name]} if name in self.earlier else {}
            state = {"running": {}} if process.poll() is None else ended(process)
            if last and process.poll():
                state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting"}}
            containers.append({"name": name, "state": state, **last})
        codes = [process.poll() for process in self.processes.values()]
        phase = "Running"
        if codes and None not in codes and self.body["spec"]["restartPolicy"] == "Never":
            phase = "Failed" if any(codes) else "Succeeded"
        return {"phase": phase, "containerStatuses": containers, **self.body.get("fault", {})}

    def end(self) -> None:
        """End it as the kubelet does: SIGTERM, then SIGKILL."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            process.kill()
            process.wait()


def ended(process: subprocess.Popen[bytes]) -> Object:
    """Return the state of a container whose process has ended."""
    code = process.wait()
    reason = "Error" if code else "Completed"
    return {"terminated": {"exitCode": 128 - code if code < 0 else code, "reason": reason}}
