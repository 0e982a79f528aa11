"""Reads the host's port counters: InfiniBand, RoCE, Ethernet; PCIe errors of GPUs and NICs.

In: the root of sysfs, which every user may read. Out: a `PortReading` per port, and the reason for each
missing medium. A read may query the card's firmware, which can hang, so each read has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from gpuproof.devices.base import DeviceError
from gpuproof.devices.deadline import CallGuard
from gpuproof.records.ports import PORT_COUNTERS, Medium, PortReading, PortTotals

SYSFS: Final = Path("/sys")
PATIENCE_S: Final = 2.0
PARAVIRTUAL: Final = ("virtio_net", "ena", "gve", "hv_netvsc", "vmxnet3", "vif")
"""Drivers of network cards emulated by a hypervisor: only the hypervisor sees wire errors."""
GPU_OR_NETWORK: Final = ("0x02", "0x03", "0x12")
"""Prefixes of the PCI classes of network cards, displays and accelerators (pci_ids.h)."""
ETHERNET_TYPE: Final = "1"
PFC: Final = {"pfc_pauses": "sysfs has no such counter: if counted, ethtool -S reports it as rx_prioN_pause"}
LINK_LAYERS: Final = {"InfiniBand": "InfiniBand", "Ethernet": "RoCE"}


class PortReader:
    """Reads all ports of a host."""

    def __init__(self, root: Path = SYSFS, *, patience_s: float = PATIENCE_S) -> None:
        self._guard = CallGuard(patience_s)
        self._calls: dict[str, Callable[[], list[PortReading]]] = {
            medium: partial(_read, medium, root) for medium in _READERS
        }

    def read(self, now_s: float, at: str) -> PortTotals:
        """Read every port; a medium that does not respond is reported as missing, with the reason."""
        answers = self._guard.call_all(self._calls)
        missing = {medium: why.cause for medium, why in answers.items() if isinstance(why, DeviceError)}
        answered = (ports for ports in answers.values() if not isinstance(ports, DeviceError))
        ports = tuple(port for of_medium in answered for port in of_medium)
        return PortTotals(monotonic_s=now_s, at=at, ports=ports, missing=missing)


def _read(medium: Medium, root: Path) -> list[PortReading]:
    """Read the ports of one medium.

    Raises:
        DeviceError: there are no such ports, or sysfs is not readable.
    """
    pattern, read, otherwise = _READERS[medium]
    try:
        folders = sorted(root.glob(pattern))
        ports = [port for folder in folders for port in read(folder)]
    except OSError as error:
        raise DeviceError(f"/sys/{pattern}: {error.strerror}") from error
    if not ports:
        raise DeviceError(otherwise if folders else f"nothing is listed as /sys/{pattern}")
    return ports


def _rdma(port: Path) -> Iterator[PortReading]:
    device, layer = port.parents[1], _text(port / "link_layer")
    reading = PortReading(
        name=f"{device.name}:{port.name}",
        medium="rdma",
        traits=(LINK_LAYERS.get(layer or "", "RDMA"),),
        state=(_text(port / "state") or "").rpartition(":")[2].strip() or None,
        rate=_text(port / "rate"),
    )
    yield _counted(reading, device / "device", [*port.glob("counters/*"), *port.glob("hw_counters/*")])


def _ethernet(port: Path) -> Iterator[PortReading]:
    if not (port / "device").exists() or _text(port / "type") != ETHERNET_TYPE:
        return
    traits = ["virtual"] if (port / "device/driver").resolve().name in PARAVIRTUAL else []
    traits += [f"member of {(port / 'master').resolve().name}"] if (port / "master").exists() else []
    speed, state = _text(port / "speed") or "", _text(port / "operstate")
    rate = f"{speed} Mb/s" if speed.isdecimal() else None
    reading = PortReading(
        name=port.name, medium="ethernet", traits=tuple(traits), state=state, rate=rate, unread=PFC
    )
    yield _counted(reading, port / "device", [*port.glob("statistics/*"), port / "carrier_changes"])


def _pcie(card: Path) -> Iterator[PortReading]:
    files = list(card.glob("aer_dev_*"))
    if files and (_text(card / "class") or "").startswith(GPU_OR_NETWORK):
        rate = [_text(card / name) for name in ("current_link_speed", "current_link_width")]
        reading = PortReading(name=card.name, medium="pcie", rate=" x".join(filter(None, rate)) or None)
        yield _counted(reading, card, files)


_READERS: Final[Mapping[Medium, tuple[str, Callable[[Path], Iterator[PortReading]], str]]] = {
    "rdma": ("class/infiniband/*/ports/*", _rdma, "no port"),
    "ethernet": ("class/net/*", _ethernet, "no Ethernet card: virtual links count no wire errors"),
    "pcie": ("bus/pci/devices/*", _pcie, "no GPU or network card reports errors (AER) to this kernel"),
}
"""Medium → where its ports are listed, the function that reads one port, and the reason reported if none is
read."""


def _counted(port: PortReading, card: Path, files: Iterable[Path]) -> PortReading:
    """Add a port's counters: for each file in the catalogue, a number or the reason it is missing."""
    counters, unread = {}, dict(port.unread)
    for file in sorted(file for file in files if (port.medium, file.name) in PORT_COUNTERS):
        text = _text(file)
        total = (text or "").rpartition(" ")[2]  # AER files have several lines; the total is the last field
        if total.isdecimal():
            counters[file.name] = int(total)
        else:
            unread[file.name] = "it cannot be read" if text is None else f"the driver returns {text!r}"
    traits = (*port.traits, "virtual function") if (card / "physfn").exists() else port.traits
    address = card.resolve().name if card.exists() else None
    return replace(port, traits=traits, address=address, counters=counters, unread=unread)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
