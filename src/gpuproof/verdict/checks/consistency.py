"""Are all hosts, and all GPUs of one type, the same? Outliers are listed with the difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuproof.base.groups import majority
from gpuproof.readings.metric_text import unit
from gpuproof.records.outcome import Outcome, not_applicable, pass_or_fail
from gpuproof.verdict.baseline import stack_of
from gpuproof.verdict.check import FactCheck
from gpuproof.verdict.checks.answers import Device, gpus_by_type, unanswered, with_unlisted
from gpuproof.verdict.facts import FleetFacts, HostFacts

SOURCE = "the other hosts of the same run"
GPUS_SOURCE = "the other GPUs of its type in the same run"
OF_THE_HOST_ITSELF = ("NCCL_SOCKET_IFNAME",)
"""Settings that name a host component; the name differs between hosts that are otherwise identical."""


def _stack(key: str) -> Callable[[HostFacts], str | None]:
    return lambda facts: stack_of({"": facts})[key]


def _built_in(*keys: str) -> Callable[[HostFacts], str | None]:
    """Return what torch was built with: "none" if it reports none, and None if it reports nothing."""

    def read(facts: HostFacts) -> str | None:
        values = [facts[key] for key in keys if key in facts]
        return str(next(filter(None, values), "none")) if values else None

    return read


def _gpus(facts: HostFacts) -> str | None:
    names = Counter(str(device.get("name")) for device in facts.get("devices") or ())
    return ", ".join(f"{count} × {name}" for name, count in sorted(names.items())) or "no GPU"


def _settings(facts: HostFacts) -> str | None:
    settings = facts.get("environment")
    if settings is None:
        return None
    named = (name for name in sorted(settings) if name.startswith("NCCL_") and name not in OF_THE_HOST_ITSELF)
    return ", ".join(f"{name}={settings[name]}" for name in named) or "none is set"


COMPARED_SETTINGS = (
    *("clock source", "CPU governor", "NUMA balancing", "transparent huge pages", "huge pages", "SMT"),
    *("IOMMU of GPUs", "container toolkit"),
)


def _host_settings(facts: HostFacts) -> str | None:
    settings = {name: fact["value"] for name, fact in (facts.get("settings") or {}).items()}
    values = (f"{name} {settings[name]}" for name in COMPARED_SETTINGS if settings.get(name))
    return ", ".join(values) or None


OF_HOSTS: Mapping[str, Callable[[HostFacts], str | None]] = {
    "GPUs": _gpus,
    "driver": _stack("driver"),
    "torch": _stack("torch"),
    "CUDA": _built_in("torch_cuda", "torch_hip"),
    "NCCL": _built_in("nccl"),
    "kernel": lambda facts: facts.get("os"),
    "NCCL settings": _settings,
    "host settings": _host_settings,
}
OF_GPUS: Mapping[str, str] = {
    "firmware": "vbios_version",
    "memory size": "mem_total_bytes",
    "power limit": "power_limit_w",
    "application clock": "clock_sm_application_mhz",
    "ECC mode": "ecc_mode",
}
"""Settings to compare between GPUs, each with the fact that contains it."""
LACKING = {
    True: "it did not report its {}",
    False: "no others reported their {}: there is nothing to compare with",
}
NEEDS_GPU = ("driver", "CUDA", "NCCL")
"""Facts that a host without a GPU does not need to report."""


def _judge_hosts(what: str, facts: FleetFacts) -> Sequence[Outcome]:
    """Compare one fact across all hosts."""
    if not facts.hosts:
        return with_unlisted((), facts)
    hosts = facts.all_hosts.items()
    values = {f"host/{host}": None if node is None else OF_HOSTS[what](node) for host, node in hosts}
    if (
        what in NEEDS_GPU
        and not {*values.values()} - {None, "none"}
        and not any(f is None or f.get("devices") for _, f in hosts)
    ):
        return [not_applicable(f"no host has a GPU, and none reports a version of {what}")]
    if len(values) == 1:
        value = next(iter(values.values()))
        return [not_applicable(f"one host, nothing to compare it with ({what}: {value or 'unknown'})")]
    return _compared(values, what, SOURCE)


def _judge_gpus(what: str, facts: FleetFacts) -> Sequence[Outcome]:
    """Compare one fact across all GPUs, type by type."""
    types = gpus_by_type(facts).items()
    return with_unlisted((x for name, group in types for x in _of_type(what, name, group)), facts)


def _of_type(what: str, name: str, group: Mapping[str, Device]) -> Sequence[Outcome]:
    fact = OF_GPUS[what]
    values = {
        subject: _text(fact, (device.get("static") or {}).get(fact)) for subject, device in group.items()
    }
    if not any(values.values()):
        reasons = {(device.get("unavailable") or {}).get(fact) for device in group.values()} - {None}
        why = f" ({'; '.join(sorted(map(str, reasons)))})" if reasons else ""
        return [not_applicable(f"no {name} reports its {what}{why}")]
    if len(values) == 1:
        return [not_applicable(f"one {name}: its {what} is {next(iter(values.values()))}")]
    return _compared(values, what, GPUS_SOURCE)


def _text(fact: str, value: Any) -> str | None:
    """Write numbers in full, since rounded ones would compare as equal."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{int(value) if value == int(value) else value:,} {unit(fact)}"
    return None if value is None else str(value)


def _compared(values: Mapping[str, str | None], what: str, source: str) -> list[Outcome]:
    different = {value for value in values.values() if value is not None}
    common = majority(values.values()) if len(different) > 1 else next(iter(different), None)
    if common is None and different:
        return [_all_differ(values, what, source, subject) for subject in values]
    most = sum(value == common for value in values.values())
    return [
        unanswered(subject, LACKING[value is None].format(what), "Check it with: gpuproof doctor --json")
        if value is None or most < 2
        else pass_or_fail(
            subject,
            value == common,
            value,
            expected=f"{common}, like {most} of {len(values)}",
            source=source,
            next_step=f"Use the same {what} as the others, or measure it separately",
        )
        for subject, value in values.items()
    ]


def _all_differ(by_subject: Mapping[str, str | None], what: str, source: str, subject: str) -> Outcome:
    values = sorted({value or "not reported" for value in by_subject.values()})
    return pass_or_fail(
        subject,
        False,
        by_subject[subject] or "not reported",
        expected=f"one {what} for all; there are {'; '.join(values)}",
        source=source,
        next_step=f"Use the same {what} for all",
    )


CHECKS = tuple(
    FactCheck(name=f"same {what}", summary=f"all {who} have the same {what}", judge=partial(judge, what))
    for who, judge, facts in (("hosts", _judge_hosts, OF_HOSTS), ("GPUs of a type", _judge_gpus, OF_GPUS))
    for what in facts
)
