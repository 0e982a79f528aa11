"""A snapshot of every host as storable text: the live view's content, or all static facts.

In: the records of each host; for facts, the first line of a recording, where a sampler writes them. Out:
text, once each host has reported its readings and processes, or the reason if it cannot. Facts shared by all
GPUs of a model are written once. JSON is available on request.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from gpuproof.base.errors import GpuproofError, RecordError
from gpuproof.base.groups import grouped
from gpuproof.observe.live_panes import process_table
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.live_table import device_table, models
from gpuproof.observe.live_text import BAD, event_lines, head_line, host_line, on_one_line
from gpuproof.observe.stream import Records, batches
from gpuproof.readings.metric_text import quantity, title
from gpuproof.records.codec import to_json
from gpuproof.records.metrics import METRICS
from gpuproof.records.readings import DeviceIdentity, Recording, Sample

LOOKS = 2
"""Number of slow-lane samples to wait for: CPU usage is computed between two readings."""


def look(sources: Mapping[str, Records]) -> tuple[dict[str, LiveState], dict[str, GpuproofError]]:
    """Read each host twice; return the states, and the reason for each host without readings."""
    with ThreadPoolExecutor(max_workers=len(sources)) as readers:
        looks = dict(zip(sources, readers.map(_look, sources.values()), strict=True))
    states = {host: state for host, state in looks.items() if isinstance(state, LiveState)}
    return states, {host: error for host, error in looks.items() if isinstance(error, GpuproofError)}


def _look(records: Records) -> LiveState | GpuproofError:
    state, looks = LiveState(), 0
    try:
        with closing(batches(records)) as incoming:
            for batch in incoming:
                state.apply(batch)
                looks += sum(isinstance(record, Sample) and record.lane == "slow" for record in batch)
                if looks >= LOOKS:
                    break
    except GpuproofError as error:
        return error
    if not state.samples:
        return RecordError("no reading arrived", next_step="Check the sampler, or the command that starts it")
    return state


def written(
    states: Mapping[str, LiveState], failures: Mapping[str, GpuproofError], *, width: int, colour: bool
) -> str:
    """Write a one-off view as text that ends with a newline."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, no_color=not colour, highlight=False)
    events = event_lines(states)
    parts: list[RenderableType] = [head_line(states), models(states), device_table(states, width=width)]
    parts += [Text("\n Driver events"), events] if events else []
    parts.append(Text(""))
    for host, state in states.items():
        parts.append(host_line(state, width=width, name=host if len(states) + len(failures) > 1 else "host"))
    parts += [
        Text(f" ✗ {on_one_line(host)}: {on_one_line(str(error))}", style=BAD)
        for host, error in failures.items()
    ]
    parts += [Text("\n Processes"), process_table(states, width=width)]
    for part in parts:
        console.print(part)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def facts_json(header: Recording) -> dict[str, Any]:
    """Return the host, its devices with static facts and missing metrics, and the missing vendors."""
    return {
        "host": header.host,
        "devices": [to_json(device) for device in header.devices],
        "absent": header.host_facts.get("vendors_absent", {}),
    }


def facts_text(header: Recording) -> str:
    """Write the facts, one block per model; if GPUs of a model differ, list each GPU's own values."""
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
        yield f"  {'unknown':<34}{', '.join(titles)} ({why})"


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
