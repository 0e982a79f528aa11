"""What are the devices of a host? Every static fact, those that all of a model share written once.

In: the first line of a recording, in which a sampler tells them. Out: text, or the same as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpuproof.base.groups import grouped
from gpuproof.readings.metric_text import quantity, title
from gpuproof.records.codec import to_json
from gpuproof.records.metrics import METRICS
from gpuproof.records.readings import DeviceIdentity, Recording


def facts_json(header: Recording) -> dict[str, Any]:
    """Return host, devices with their static facts and what each does not tell, and vendors without any."""
    return {
        "host": header.host,
        "devices": [to_json(device) for device in header.devices],
        "absent": header.host_facts.get("vendors_absent", {}),
    }


def facts_text(header: Recording) -> str:
    """Write the facts, a block a model; where GPUs of it differ, each GPU's own."""
    models = grouped((device.name, device) for device in header.devices)
    lines = [line for name, devices in models.items() for line in (*_model(name, devices), "")]
    absent = header.host_facts.get("vendors_absent", {})
    lines += [f"no {vendor}: {why}" for vendor, why in absent.items()]
    return "\n".join(lines).rstrip()


def _model(name: str, devices: Sequence[DeviceIdentity]) -> Iterator[str]:
    indices = ", ".join(str(device.physical_index) for device in devices)
    yield f"GPU {indices}: {name}"
    facts = [_facts(device) for device in devices]
    for fact in dict.fromkeys(fact for of_device in facts for fact in of_device):
        texts = [of_device.get(fact, "–") for of_device in facts]
        if len(set(texts)) == 1:
            yield f"  {title(fact):<34}{texts[0]}"
        else:
            for device, text in zip(devices, texts, strict=True):
                yield f"  {title(fact):<34}GPU {device.physical_index}: {text}"
    reasons = grouped((why, title(fact)) for fact, why in devices[0].unavailable.items())
    for why, titles in reasons.items():
        yield f"  {'not told':<34}{', '.join(titles)} ({why})"


def _facts(device: DeviceIdentity) -> dict[str, str]:
    ids = {
        "vendor": device.vendor,
        "vendor_index": device.vendor_index,
        "framework_index": device.framework_index,
        "uuid": device.uuid,
        "pci_bus_id": device.pci_bus_id,
    }
    return {name: _text(name, value) for name, value in (ids | device.static).items() if value is not None}


def _text(name: str, value: Any) -> str:
    is_measured = name in METRICS and isinstance(value, (int, float))
    return quantity(name, value) if is_measured else str(value)
