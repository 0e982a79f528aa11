"""What a machine has, what is missing, and how to fix it: the checks behind `gpuproof doctor`.

In: the facts printed by `python -m gpuproof.worker probe`. Out: an outcome per check; checks that do not
apply to this machine are omitted. FAIL: nothing can be measured here. WARN: measuring works, with
limitations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from gpuproof.base import units
from gpuproof.records.outcome import Expectation, Judged, Outcome, not_applicable
from gpuproof.verdict.check import stated_check
from gpuproof.verdict.facts import HostFacts

REQUIREMENTS = "docs/start/install.md"
ANSWERING = Expectation(
    "a driver that responds",
    REQUIREMENTS,
    "Look at dmesg; if GPUs are only asleep (no persistence mode), try again. Otherwise reset the "
    "GPU or the host",
    responsible="administrator",
)


@stated_check("Python", "3.10 or newer", REQUIREMENTS, "Install a newer version, or select one with --python")
def judge_python(facts: HostFacts, expected: Expectation) -> Outcome:
    """Check the Python interpreter that would run the ranks."""
    return expected.judge(_version(facts["python"]) >= (3, 10), f"{facts['python']} on {facts['os']}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


@stated_check(
    "PyTorch",
    "2.4 or newer",
    REQUIREMENTS,
    "pip install 'torch>=2.4' into the environment of that Python",
)
def judge_torch(facts: HostFacts, expected: Expectation) -> Outcome:
    """Check whether torch can be imported; an old version works, with limitations."""
    version: str | None = facts.get("torch")
    if version is not None:
        return replace(expected, otherwise="WARN").judge(_version(version) >= (2, 4), version)
    reason = facts.get("torch_missing")
    return expected.judge(False, f"{facts['executable']} cannot import torch ({reason})")


@stated_check("processor", "known by its name", REQUIREMENTS, "Look at /proc/cpuinfo", otherwise="WARN")
def judge_cpu(facts: HostFacts, expected: Expectation) -> Outcome | None:
    """Report the CPU; its governor is checked together with the host settings."""
    cpu = facts.get("cpu")
    if cpu is None:
        return None
    usable = f"{cpu['usable_cpus'] or cpu['logical_cpus']} usable"
    memory = units.memory(facts.get("memory_total_bytes"))
    return expected.judge(bool(cpu["name"]), f"{cpu['name'] or 'unknown CPU'}, {usable}, {memory}")


@stated_check(
    "accelerators",
    "if there are GPUs, at least one responds to its vendor's driver",
    REQUIREMENTS,
    "Install the vendor's driver, or the library named, to measure a GPU",
    responsible="administrator",
    otherwise="WARN",
)
def judge_accelerators(facts: HostFacts, expected: Expectation) -> Outcome:
    """Check whether a driver lists a device and responds to queries."""
    accelerators = facts["accelerators"]
    if accelerators.get("silent"):
        places = ", ".join(f"{device['vendor']} {device['pci_bus_id']}" for device in accelerators["silent"])
        return ANSWERING.judge(False, f"{places}: {accelerators['silent'][0]['reason']}")
    names = "; ".join(device["name"] for device in accelerators["devices"])
    reasons = "; ".join(f"{vendor}: {reason}" for vendor, reason in accelerators["absent"].items())
    undriven = ", ".join(f"{gpu['vendor']} {gpu['pci_bus_id']}" for gpu in accelerators.get("undriven") or ())
    if names:
        return expected.judge(True, names + (f"; not readable: {undriven}" if undriven else ""))
    if undriven:
        return expected.judge(False, f"on the PCI bus, but not readable: {undriven} ({reasons})")
    return expected.judge(True, f"no GPU found; runs use the CPU ({reasons})")


@stated_check(
    "granted GPUs",
    "all GPUs that the scheduler allocated",
    "docs/verdicts.md",
    "Look at dmesg, nvidia-smi -L and CUDA_VISIBLE_DEVICES",
    responsible="administrator",
)
def judge_grant(facts: HostFacts, expected: Expectation) -> Outcome | None:
    """Compare the devices that torch sees with a scheduler's allocation; skipped if one is missing."""
    grant, num_seen = facts.get("granted_gpus"), len(facts.get("devices") or ())
    if grant is None or not facts.get("torch"):
        return None
    if num_seen:  # the user may have hidden some of them
        expected = replace(expected, otherwise="WARN")
    seen = f"torch sees {num_seen} of {grant['number']} ({grant['source']})"
    return expected.judge(num_seen >= grant["number"], seen)


@stated_check(
    "CUDA",
    "a build of torch that sees the driver's devices",
    "https://docs.pytorch.org/docs/stable/cuda.html",
    "Look at CUDA_VISIBLE_DEVICES and the driver version",
    otherwise="WARN",
)
def judge_cuda(facts: HostFacts, expected: Expectation) -> Iterable[Judged]:
    """Check whether torch sees the devices that drivers list; the check is named CUDA or ROCm."""
    if facts.get("torch") and not facts["accelerators"].get("silent"):
        name = "ROCm" if facts["devices"] and facts["torch_hip"] else "CUDA"
        yield Judged(name=name, outcome=_visible(facts, expected))


def _visible(facts: HostFacts, expected: Expectation) -> Outcome:
    num_seen = len(facts["devices"])
    if not num_seen and not facts["accelerators"]["devices"]:
        return not_applicable("torch sees no device; gloo on the CPU will be used")
    build = facts["torch_cuda"] or facts["torch_hip"]
    if num_seen:
        seen = f"{build}, torch sees {num_seen} {'device' if num_seen == 1 else 'devices'}"
        return expected.judge(True, seen)
    cpu_only = "This torch is built for the CPU only: install the build for your driver"
    return expected.judge(
        False,
        f"the driver lists devices but torch {facts['torch']} sees none",
        next_step=None if build else cpu_only,
    )


@stated_check(
    "NCCL",
    "in torch, for ranks on GPUs",
    "https://docs.pytorch.org/docs/stable/distributed.html#backends",
    "Install a build of torch that includes it",
    otherwise="WARN",
)
def judge_nccl(facts: HostFacts, expected: Expectation) -> Outcome | None:
    """Check whether ranks on GPUs can communicate through NCCL."""
    if not facts.get("devices"):
        return None
    lacking = "not in this torch: several ranks will use gloo"
    return expected.judge(bool(facts["nccl"]), facts["nccl"] or lacking)


@stated_check(
    "GPU readings",
    "installed, to see clocks, power, temperature and other users",
    "https://docs.nvidia.com/deploy/nvml-api/",
    "pip install nvidia-ml-py",
    otherwise="WARN",
)
def judge_gpu_readings(facts: HostFacts, expected: Expectation) -> Outcome | None:
    """Warn if readings from NVIDIA GPUs are not available."""
    accelerators = facts["accelerators"]
    found = (*accelerators["devices"], *(accelerators.get("undriven") or ()))
    is_nvidia = any(device["vendor"] == "nvidia" for device in found)
    if facts["modules"]["pynvml"] or not is_nvidia:
        return None
    return expected.judge(False, "nvidia-ml-py is not installed")


@stated_check(
    "host readings",
    "psutil, for readings on systems without /proc",
    "https://psutil.readthedocs.io/",
    "pip install psutil",
    otherwise="WARN",
)
def judge_host_readings(facts: HostFacts, expected: Expectation) -> Outcome:
    """Check whether psutil is installed, which is needed on hosts without /proc."""
    is_there = facts["modules"]["psutil"]
    return expected.judge(is_there, "psutil" if is_there else "psutil is missing; /proc is read instead")


@stated_check(
    "C++ compiler",
    "a C++ compiler, for training.compile.enabled on a CPU",
    "https://docs.pytorch.org/docs/stable/torch.compiler.html",
    "apt-get install g++, or the C++ compiler package of your system",
    responsible="administrator",
    otherwise="WARN",
)
def judge_compiler(facts: HostFacts, expected: Expectation) -> Outcome:
    """Check whether a compiler is installed."""
    return expected.judge(bool(facts["compiler"]), facts["compiler"] or "none")
