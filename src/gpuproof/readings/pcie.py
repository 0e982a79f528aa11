"""How fast was each GPU's PCIe link under load? On an idle GPU, a lower generation means nothing.

A reading counts as under load if the GPU was busy, or if it received more since the previous reading than
anything but copies could explain: an idle H100 receives 1 MB/s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gpuproof.base.groups import grouped
from gpuproof.readings.recording import DeviceTrack, Flags, Floats, RecordingData
from gpuproof.readings.warnings import FEWEST_OF_GENERATION, LOADED_PERCENT
from gpuproof.records.run import Start

if TYPE_CHECKING:  # Evidence caches the result
    from gpuproof.readings.evidence import Evidence

RECEIVED_BYTES_PER_S: Final = 1e8
LINK: Final = ("pcie_gen", "pcie_width")


def links_under_load(recording: RecordingData) -> dict[str, Floats]:
    """Return the generations and lanes (two rows) read under load, for each GPU UUID."""
    links, missing = {}, np.full(len(recording.time_s), np.nan)
    for track in recording.devices:
        both = np.array([track.metrics.get(name, missing) for name in LINK])
        read = both[:, _loaded(recording, track) & ~np.isnan(both).any(axis=0)]
        if track.identity.uuid is not None:
            links[track.identity.uuid] = read
    return links


def pcie_under_load(evidence: Evidence) -> dict[str, dict[str, float]]:
    """Return each GPU's maximum PCIe generation and width, by UUID, if there are enough readings."""
    for launch in evidence.launches:
        for start in launch.of(Start):
            evidence.port_totals(launch.case, start.host)  # reads each recording once
    links = grouped(pair for of_host in evidence.links.values() for pair in of_host.items())
    return {
        uuid: dict(zip(LINK, read.max(axis=1).tolist(), strict=True))
        for uuid, of_gpu in links.items()
        if (read := np.hstack(of_gpu)).shape[1] >= FEWEST_OF_GENERATION
    }


def _loaded(recording: RecordingData, track: DeviceTrack) -> Flags:
    util, received = track.values("util_gpu_percent"), track.values("pcie_rx_bytes")
    loaded = np.zeros(len(recording.time_s), dtype=bool) if util is None else util >= LOADED_PERCENT
    if received is not None:
        read = np.flatnonzero(~np.isnan(received))
        loaded[read[1:]] |= np.diff(received[read]) > RECEIVED_BYTES_PER_S * np.diff(recording.time_s[read])
    return loaded
