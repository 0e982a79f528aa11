"""What a machine has, what will be missing, and what to do: the checks behind `gpuproof doctor`.

In: the facts that `python -m gpuproof.worker probe` prints. Out: an outcome a check. FAIL: nothing can be
measured here. WARN: it works, with less than there could be. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpuproof import units
from gpuproof.records.outcome import Expectation, Judged, Outcome, not_applicable

Facts = Mapping[str, Any]

REQUIREMENTS = "README.md: what gpuproof needs"
PYTHON = Expectation("3.10 or newer", REQUIREMENTS, "Install a newer one, or give it with --python")
TORCH = Expectation(
    "2.4 or newer", REQUIREMENTS, "pip install 'torch>=2.4', into the environment that gpuproof runs in"
)
OLD_TORCH = Expectation(TORCH.expected, TORCH.source, TORCH.next_step, otherwise="WARN")
GOVERNOR = Expectation(
    "no frequency governor that changes the clock while steps are timed",
    "https://docs.kernel.org/admin-guide/pm/cpufreq.html#generic-scaling-governors",
    "Set the governor to performance for steady step times",
    responsible="administrator",
    otherwise="WARN",
)
ACCELERATORS = Expectation(
    "one at least that its vendor's driver lists",
    REQUIREMENTS,
    "Install the vendor's driver to measure a GPU",
    responsible="administrator",
    otherwise="WARN",
)
ANSWERING = Expectation(
    "a driver that answers",
    REQUIREMENTS,
    "Look at dmesg; where GPUs only sleep (no persistence mode), ask again. Else reset the GPU or the host",
    responsible="administrator",
)
GRANTED = Expectation(
    "all that the scheduler granted",
    "docs/validate.md",
    "Look at dmesg, nvidia-smi -L and CUDA_VISIBLE_DEVICES",
    responsible="administrator",
)
CUDA = Expectation(
    "a build of torch that sees the driver's devices",
    "https://docs.pytorch.org/docs/stable/cuda.html",
    "Look at CUDA_VISIBLE_DEVICES and the driver's version",
    otherwise="WARN",
)
NCCL = Expectation(
    "in torch, for ranks on GPUs",
    "https://docs.pytorch.org/docs/stable/distributed.html#backends",
    "Install a build of torch that has it",
    otherwise="WARN",
)
NVML = Expectation(
    "installed, to see clocks, power, temperature and other users",
    "https://docs.nvidia.com/deploy/nvml-api/",
    "pip install nvidia-ml-py",
    otherwise="WARN",
)
PSUTIL = Expectation(
    "psutil, for readings on systems without /proc",
    "https://psutil.readthedocs.io/",
    "pip install psutil",
    otherwise="WARN",
)
COMPILER = Expectation(
    "one, for training.compile.enabled on a CPU",
    "https://docs.pytorch.org/docs/stable/torch.compiler.html",
    "apt-get install g++, or your system's package of a C++ compiler",
    responsible="administrator",
    otherwise="WARN",
)


def judge_machine(facts: Facts) -> list[Judged]:
    """Judge a machine's facts; what cannot be asked of it is left out."""
    there, compiler = facts["modules"]["psutil"], facts["compiler"]
    outcomes = {
        "Python": PYTHON.judge(_version(facts["python"]) >= (3, 10), f"{facts['python']} on {facts['os']}"),
        "PyTorch": _torch(facts),
        "processor": _processor(facts),
        "accelerators": _accelerators(facts["accelerators"]),
        "granted GPUs": _granted(facts),
        "ROCm" if facts.get("devices") and facts["torch_hip"] else "CUDA": _cuda(facts),
        "NCCL": _nccl(facts),
        "GPU readings": _device_readings(facts),
        "host readings": PSUTIL.judge(
            there, "psutil" if there else "psutil is not installed; /proc is read instead"
        ),
        "C++ compiler": COMPILER.judge(bool(compiler), compiler or "none"),
    }
    return [Judged(name=name, outcome=outcome) for name, outcome in outcomes.items() if outcome is not None]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _torch(facts: Facts) -> Outcome:
    version: str | None = facts.get("torch")
    if version is not None:
        return OLD_TORCH.judge(_version(version) >= (2, 4), version)
    reason = facts.get("torch_missing")
    return TORCH.judge(False, f"cannot be imported by {facts['executable']} ({reason})")


def _processor(facts: Facts) -> Outcome | None:
    cpu = facts.get("cpu")
    if cpu is None:
        return None
    is_steady = cpu["governor"] in (None, "performance")
    parts = [
        cpu["name"] or "unknown processor",
        f"{cpu['usable_cpus'] or cpu['logical_cpus']} usable",
        units.memory(facts.get("memory_total_bytes")),
        *([] if is_steady else [f"frequency governor {cpu['governor']}"]),
    ]
    return GOVERNOR.judge(is_steady, ", ".join(parts))


def _accelerators(accelerators: Mapping[str, Any]) -> Outcome:
    if accelerators.get("silent"):
        places = ", ".join(f"{device['vendor']} {device['pci_bus_id']}" for device in accelerators["silent"])
        return ANSWERING.judge(False, f"{places}: {accelerators['silent'][0]['reason']}")
    names = "; ".join(device["name"] for device in accelerators["devices"])
    reasons = "; ".join(f"{vendor}: {reason}" for vendor, reason in accelerators["absent"].items())
    return ACCELERATORS.judge(bool(names), names or f"none ({reasons}): runs measure the CPU")


def _granted(facts: Facts) -> Outcome | None:
    """Hold what torch sees against what a scheduler granted; nothing where none did, or torch is missing."""
    grant, num_seen = facts.get("granted_gpus"), len(facts.get("devices") or ())
    if grant is None or not facts.get("torch"):
        return None
    seen = f"torch sees {num_seen} of {grant['number']} ({grant['source']})"
    expectation = replace(
        GRANTED, otherwise="WARN" if num_seen else "FAIL"
    )  # the user may have left some out
    return expectation.judge(num_seen >= grant["number"], seen)


def _cuda(facts: Facts) -> Outcome | None:
    if not facts.get("torch") or facts["accelerators"].get("silent"):
        return None
    num_seen = len(facts["devices"])
    if not num_seen and not facts["accelerators"]["devices"]:
        return not_applicable("torch sees no device; gloo on the CPU will be used")
    build = facts["torch_cuda"] or facts["torch_hip"]
    if num_seen:
        return CUDA.judge(True, f"{build}, torch sees {num_seen} {'device' if num_seen == 1 else 'devices'}")
    return CUDA.judge(
        False,
        f"the driver lists devices and torch {facts['torch']} sees none",
        next_step=None
        if build
        else "This torch is built for the CPU only: install the build for your driver",
    )


def _nccl(facts: Facts) -> Outcome | None:
    if not facts.get("devices"):
        return None
    return NCCL.judge(bool(facts["nccl"]), facts["nccl"] or "not in this torch: several ranks will use gloo")


def _device_readings(facts: Facts) -> Outcome | None:
    is_nvidia = any(device["vendor"] == "nvidia" for device in facts["accelerators"]["devices"])
    if facts["modules"]["pynvml"] or not is_nvidia:
        return None
    return NVML.judge(False, "nvidia-ml-py is not installed")
