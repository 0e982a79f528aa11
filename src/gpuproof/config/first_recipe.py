"""A recipe for a host: device, ranks, precision, batch size and threads, based on its probe.

In: the facts printed by `python -m gpuproof.worker probe`. Out: commented YAML that loads and runs on that
host. Its values are starting points, not measurements; the reason for each is in a comment. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuproof.base import units
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.base.outside import plain
from gpuproof.processes.granted import users_threads

ProbeFacts = Mapping[str, Any]
BF16_CAPABILITY = (8, 0)
"""Tensor cores support bfloat16 from compute capability 8.0, and fp16 from 7.0:
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#compute-capabilities"""
FP16_CAPABILITY = (7, 0)
BATCHES = ((64, 256), (30, 128), (14, 64), (7, 32))
"""Minimum memory of the smallest device in GiB → batch size of 224-pixel images for ResNet-50; below the
lowest entry, 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A value and the reason for it."""

    value: str
    reason: str


def first_recipe(facts: ProbeFacts) -> str:
    """Write a recipe for the host.

    Raises:
        EnvironmentUnfitError: PyTorch is missing on the host, so nothing can be measured.
    """
    if not facts.get("torch"):
        raise EnvironmentUnfitError(
            f"PyTorch cannot be imported by {facts['executable']} ({facts.get('torch_missing')})",
            place=str(facts["host"]),
            next_step="Install torch there, or specify another Python with --python",
        )
    body = _for_gpus(facts) if facts["devices"] else _for_cpu(facts)
    return f"{_head(facts)}\n{body}\nrun:\n  experiment_name: {_experiment(facts)}\n{REPEATS}"


REPEATS = """  repeats: 3                  # fresh processes: one alone cannot show how much launches differ
"""


def _head(facts: ProbeFacts) -> str:
    devices = facts["devices"]
    has = "; ".join(device["name"] for device in devices) if devices else f"no GPU, {_cpu(facts)}"
    lines = [
        f"# A first recipe for {facts['host']}: {has}.",
        f"# Made by `gpuproof init` (gpuproof {facts['gpuproof']}, torch {facts['torch']}).",
        "#",
        "#   gpuproof run THIS_FILE                           as is",
        "#   gpuproof run THIS_FILE --data.batch_size=64      any key can be set this way",
        "#   gpuproof config show THIS_FILE --origin          every key, including those omitted here",
    ]
    listed = facts["accelerators"]["devices"]
    if listed and not devices:
        names = "; ".join(device["name"] for device in listed)
        lines += ["#", f"# The driver lists {names}, but torch sees none: `gpuproof doctor` says why."]
    return "".join(plain(line, allowed="") + "\n" for line in lines)


def _cpu(facts: ProbeFacts) -> str:
    cpu = facts.get("cpu") or {}
    return f"{cpu.get('name') or 'an unknown CPU'}, {_usable_cpus(facts)} usable"


def _usable_cpus(facts: ProbeFacts) -> int:
    cpu = facts.get("cpu") or {}
    usable = int(cpu.get("usable_cpus") or cpu.get("logical_cpus") or 1)
    return min(usable, users_threads(facts.get("environment") or {}) or usable)


def _experiment(facts: ProbeFacts) -> str:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", str(facts["host"])).strip("-.")[:80]
    return f"first-{safe}" if safe else "first"


def _for_gpus(facts: ProbeFacts) -> str:
    devices = facts["devices"]
    precision, batch = _precision(facts), _batch(devices)
    kinds = {device["name"] for device in devices}
    mixed = "  # they differ: the slowest sets the pace" if len(kinds) > 1 else ""
    threads = max(1, _usable_cpus(facts) // len(devices))
    return f"""kind: training              # forward, backward and optimizer; `inference` is forward only

data:
  name: synthetic             # generated on the device: compute alone, no disk and no decoding
  batch_size: {batch.value:<16}# per rank; {batch.reason}

model:
  name: resnet50
  num_classes: 1000
  channels_last: true         # the layout in memory that tensor cores like for images

training:
  precision: {precision.value:<17}# {precision.reason}

benchmark:
  warmup_steps: 50            # recorded, but not counted: the first steps are always slow
  measure_by: time
  measure_seconds: 20

distributed:
  device: cuda                # refused, rather than measured on the CPU, where torch sees none
  nproc: {len(devices):<21}# a rank for each device that torch sees{mixed}
  threads_per_rank: {threads:<10}# {_usable_cpus(facts)} usable CPUs, shared out
"""


def _precision(facts: ProbeFacts) -> Choice:
    if facts.get("torch_hip"):
        return Choice(value="bf16", reason="bfloat16; fp32 to compare, amp for fp16 with a gradient scaler")
    lowest = min(_capability(device) for device in facts["devices"])
    shown = ".".join(map(str, lowest))
    if lowest >= BF16_CAPABILITY:
        return Choice(value="bf16", reason=f"compute capability {shown}: tensor cores support bfloat16")
    if lowest >= FP16_CAPABILITY:
        return Choice(value="amp", reason=f"compute capability {shown}: tensor cores support fp16, not bf16")
    return Choice(value="fp32", reason=f"compute capability {shown} has no tensor cores")


def _capability(device: Mapping[str, Any]) -> tuple[int, int]:
    major, _, minor = str(device["compute_capability"]).partition(".")
    return int(major), int(minor or 0)


def _batch(devices: list[Mapping[str, Any]]) -> Choice:
    smallest_bytes = min(int(device["memory_total_bytes"]) for device in devices)
    value = next((batch for gib, batch in BATCHES if smallest_bytes >= gib * 2**30), 16)
    reason = f"a starting point for {units.memory(smallest_bytes)}; larger batches keep a GPU busier"
    return Choice(value=str(value), reason=reason)


def _for_cpu(facts: ProbeFacts) -> str:
    return f"""kind: training              # forward, backward and optimizer; `inference` is forward only

data:
  name: digits                # 1,797 real handwritten digits, which come with gpuproof
  image_size: 64              # pixels along an edge; the digits are enlarged from 8
  batch_size: 32              # samples per step

model:
  name: resnet18
  num_classes: 10             # one for each digit
  channels_last: false        # a layout for GPUs

training:
  precision: fp32             # runs on every CPU

benchmark:
  warmup_steps: 3             # recorded, but not counted: the first steps are always slow
  measure_by: time
  measure_seconds: 10

distributed:
  device: cpu                 # torch sees no other device here
  nproc: 1                    # more ranks would share the same CPUs
  threads_per_rank: {_usable_cpus(facts):<10}# all usable CPUs
"""
