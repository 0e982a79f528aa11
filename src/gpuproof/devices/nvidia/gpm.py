"""How busy the parts of an NVIDIA GPU are, from its performance monitor (GPM, Hopper and later).

A metric is a mean between two samples, so the first reading has none. The samples are buffers of the
driver's that are kept for the life of the adapter.
"""

from __future__ import annotations

from typing import Any

from gpuproof.devices.base import DeviceError
from gpuproof.devices.nvidia import nvml as nvml_border
from gpuproof.devices.sources import Answer

_METRIC_IDS = {
    "sm_active_percent": 2,
    "sm_occupancy_percent": 3,
    "tensor_active_percent": 5,
    "dram_active_percent": 10,
}
_GET_VERSION = 1


class GpmSampler:
    """Two samples of one GPU, taken in turn."""

    metrics = tuple(_METRIC_IDS)

    def __init__(self) -> None:
        self._previous: Any = None
        self._spare: Any = None

    def ask(self, nvml: Any, handle: Any) -> Answer:
        """Take a sample and return the means since the last one."""
        if self._spare is None and self._previous is None and not self._supported(nvml, handle):
            raise nvml.NVMLError(nvml_border.NOT_SUPPORTED)
        if self._spare is None:
            self._spare = nvml.nvmlGpmSampleAlloc()
        nvml.nvmlGpmSampleGet(handle, self._spare)
        begin, end = self._previous, self._spare
        self._previous, self._spare = end, begin
        if begin is None:
            return dict.fromkeys(self.metrics, DeviceError("a mean between two readings; this is the first"))
        return self._means(nvml, begin, end)

    @staticmethod
    def _supported(nvml: Any, handle: Any) -> bool:
        return bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)

    def _means(self, nvml: Any, begin: Any, end: Any) -> Answer:
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = _GET_VERSION
        request.numMetrics = len(_METRIC_IDS)
        request.sample1, request.sample2 = begin, end
        for place, metric_id in enumerate(_METRIC_IDS.values()):
            request.metrics[place].metricId = metric_id
        nvml.nvmlGpmMetricsGet(request)
        answer: Answer = {}
        for place, name in enumerate(_METRIC_IDS):
            result = request.metrics[place]
            code = result.nvmlReturn
            answer[name] = result.value if code == 0 else DeviceError(nvml_border.explain(code))
        return answer
