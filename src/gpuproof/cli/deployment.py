"""The file of hosts that a deployment writes: in lambdactl's form, and an inventory as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpuproof.base.errors import UsageError
from gpuproof.base.files import read_plain
from gpuproof.cloud.lambda_cloud import Instance, LaunchRequest
from gpuproof.store.run import write_whole


class Deployed:
    """Instances as they come, always on disk."""

    def __init__(self, path: Path, requests: Sequence[LaunchRequest]) -> None:
        self._path = path
        self._requests = requests
        self._entries: list[dict[str, Any]] = []

    @property
    def ids(self) -> list[str]:
        """The ids so far."""
        return [entry["instance_ids"][0] for entry in self._entries]

    def add(self, instance_id: str) -> None:
        """Add an instance that was launched."""
        name = self._requests[min(len(self._entries), len(self._requests) - 1)].name
        self._entries.append({"instance_ids": [instance_id], "name": name})
        self._write()

    def complete(self, instances: Sequence[Instance]) -> None:
        """Add what is known once they are active: addresses, GPUs and prices."""
        for entry, instance in zip(self._entries, instances, strict=True):
            facts = {
                "ip": instance.ip,
                "hostname": instance.hostname,
                "region": instance.region,
                "status": instance.status,
                "gpus": instance.gpus,
                "gpu_type": instance.gpu_type,
                "price_per_hour": instance.price_per_hour,
            }
            entry |= {key: value for key, value in facts.items() if value is not None}
        self._write()

    def _write(self) -> None:
        import json

        first = self._requests[0]
        content = {
            "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "instance_type": first.type_name,
            "instance_count": len(self._requests),
            "name_prefix": first.name.rpartition("-")[0],
            "region": first.region,
            "instances": self._entries,
        }
        write_whole(self._path, json.dumps(content, indent=2) + "\n")


def read_text(path: Path) -> str:
    """Read a text file that the user named.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return read_plain(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot be read: {reason}", place=str(path)) from error
