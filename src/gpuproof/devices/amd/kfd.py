"""ROCm's list of GPUs and their processes, read from the KFD's files under /sys.

ROCm numbers GPUs in the order of these nodes, not in the order of DRM cards.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuproof.devices.base import DeviceProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class KfdNode:
    """A GPU as known to ROCm's kernel driver."""

    number: int
    gpu_id: int


def find_nodes(root: Path) -> dict[str, KfdNode]:
    """Map each GPU's PCI address to its node; in a container, other GPUs' nodes may not be readable."""
    nodes = [_node(path) for path in sorted((root / "class/kfd/kfd/topology/nodes").glob("*"))]
    return dict(node for node in nodes if node is not None)


def _node(path: Path) -> tuple[str, KfdNode] | None:
    try:
        properties = dict(re.findall(r"^(\w+) (\d+)$", (path / "properties").read_text(), re.MULTILINE))
        gpu_id = int((path / "gpu_id").read_text())
    except PermissionError:
        return None
    if gpu_id == 0:  # a CPU node
        return None
    location, domain = int(properties["location_id"]), int(properties.get("domain", 0))
    address = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    return address, KfdNode(number=int(path.name), gpu_id=gpu_id)


def list_processes(root: Path, node: KfdNode) -> tuple[DeviceProcess, ...]:
    """List the processes that use memory on a GPU; a process that exits in the meantime is omitted."""
    processes = []
    for path in sorted((root / "class/kfd/kfd/proc").glob(f"*/vram_{node.gpu_id}")):
        with suppress(FileNotFoundError):
            pid, used_bytes = int(path.parent.name), int(path.read_text())
            processes.append(DeviceProcess(pid=pid, mem_used_bytes=used_bytes, kind="compute"))
    return tuple(processes)
