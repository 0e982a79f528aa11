"""A sysfs tree written by hand: ports whose counters a test programs, and counts up as a driver would."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RDMA_COUNTERS = {
    **dict.fromkeys(("symbol_error", "link_downed", "port_rcv_errors", "port_xmit_discards"), 0),
    **{"port_xmit_data": 1_000, "port_rcv_data": 1_000},
    **{"port_xmit_packets": 1_000, "port_rcv_packets": 1_000},
}
HARDWARE_COUNTERS = dict.fromkeys(
    ("packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "out_of_sequence"), 0
)
STATISTICS = {
    **dict.fromkeys(("rx_errors", "rx_crc_errors", "tx_errors", "rx_dropped", "tx_dropped"), 0),
    **{"rx_bytes": 5_000, "tx_bytes": 5_000, "rx_packets": 50, "tx_packets": 50},
}
AER = "RxErr {0}\nBadTLP 0\nTOTAL_ERR_{1} {0}\n"


@dataclass(frozen=True)
class SysfsPorts:
    """The root of a tree, like /sys."""

    root: Path

    def write(self, path: str, text: object) -> Path:
        """Write one file, with the line end of the kernel's."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f".{file.name}")  # a reader sees the old or the new number, and no half
        aside.write_text(f"{text}\n")
        aside.rename(file)
        return file

    def rdma(self, device: str = "mlx5_0", *, layer: str = "InfiniBand", **totals: int) -> str:
        """Add a port as mlx5 shows it; `totals` are laid over those of a port that counted no error."""
        port = f"class/infiniband/{device}/ports/1"
        for name, value in {"state": "4: ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": layer}.items():
            self.write(f"{port}/{name}", value)
        for folder, counters in (("counters", RDMA_COUNTERS), ("hw_counters", HARDWARE_COUNTERS)):
            for name, total in counters.items():
                self.write(f"{port}/{folder}/{name}", totals.get(name, total))
        self.write(f"{port}/hw_counters/lifespan", 10)
        self._card(f"class/infiniband/{device}", f"0000:{0x40 + int(device[-1]):02x}:00.0", "mlx5_core")
        return f"{device}:1"

    def ethernet(self, name: str = "eth0", *, driver: str | None = "mlx5_core", **totals: int) -> str:
        """Add a network interface; of a virtual link there is no card behind it (`driver` None)."""
        port = f"class/net/{name}"
        for file, value in {"type": 1, "operstate": "up", "speed": 100_000}.items():
            self.write(f"{port}/{file}", value)
        self.write(f"{port}/carrier_changes", totals.get("carrier_changes", 1))
        for counter, total in STATISTICS.items():
            self.write(f"{port}/statistics/{counter}", totals.get(counter, total))
        if driver is not None:
            self._card(port, f"0000:{0x80 + int(name[-1]):02x}:00.0", driver)
        return name

    def pcie(
        self, address: str = "0000:01:00.0", *, pci_class: str = "0x030200", correctable: int = 0
    ) -> str:
        """Add a PCIe device that reports its errors, by default a GPU."""
        card = f"bus/pci/devices/{address}"
        for name, value in {"class": pci_class, "current_link_speed": "32.0 GT/s PCIe"}.items():
            self.write(f"{card}/{name}", value)
        self.write(f"{card}/current_link_width", 16)
        self.write(f"{card}/aer_dev_correctable", AER.format(correctable, "COR").rstrip())
        self.write(f"{card}/aer_dev_nonfatal", AER.format(0, "NONFATAL").rstrip())
        self.write(f"{card}/aer_dev_fatal", AER.format(0, "FATAL").rstrip())
        return address

    def virtual_function(self, port: str) -> None:
        """Make the card of a port a virtual function."""
        self.write(f"{port}/device/physfn/class", "0x020000")

    def _card(self, owner: str, address: str, driver: str) -> None:
        card, module = self.root / "devices" / address, self.root / "bus/pci/drivers" / driver
        for folder in (card, module):
            folder.mkdir(parents=True, exist_ok=True)
        for link, target in ((self.root / owner / "device", card), (card / "driver", module)):
            if not link.exists():
                link.symlink_to(target)
