"""Readable names of subjects: `host/a/gpu/GPU-2222…` is *GPU 0 on a*, a link is *a → GPU 0*.

Records, results and their JSON keep the permanent identity; pages use these names. Text that users may act on
later shows both, because indices change: *GPU 0 (GPU-2222…)*.

>>> named("slow: link/host/a>host/a/gpu/GPU-2.", {"host/a/gpu/GPU-2": 0})
'slow: a → GPU 0.'
>>> named("host/a/gpu/GPU-2", {"host/a/gpu/GPU-2": 0}, with_identity=True)
'GPU 0 (GPU-2) on a'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from gpuproof.records.page import Commands, Files, Picture, Provenance
from gpuproof.records.result import Measure

_END = r"[^\s>,;:()]*[^\s>,;:().…]"
SUBJECT_IN_TEXT = re.compile(rf"(?<![\w/.-])(?:link/[^\s>]+>{_END}|host/{_END})")
AS_IT_IS = (Commands, Files, Picture, Provenance, Measure)
"""Parts of a page that contain files and commands, or are themselves measures."""
T = TypeVar("T")


def named(text: str, indices: Mapping[str, int], *, with_identity: bool = False) -> str:
    """Return text with readable names of its subjects; `indices` maps GPU subjects to indices."""
    if "host/" not in text and "link/" not in text:
        return text
    return SUBJECT_IN_TEXT.sub(lambda match: _name(match[0], indices, with_identity), text)


def named_page(part: T, indices: Mapping[str, int]) -> T:
    """Return a page, or part of one, with readable names for all subjects in its text."""
    if isinstance(part, str):
        return named(part, indices)  # type: ignore[return-value]  # a text for a text
    if isinstance(part, tuple):
        return tuple(named_page(one, indices) for one in part)  # type: ignore[return-value]
    if not is_dataclass(part) or isinstance(part, (*AS_IT_IS, type)):
        return part
    changed: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if (new := named_page(value, indices)) != value:
            changed[field.name] = new
    return replace(part, **changed) if changed else part


def _name(subject: str, indices: Mapping[str, int], with_identity: bool) -> str:
    if not subject.startswith("link/"):
        host, gpu = _parts(subject, indices, with_identity)
        return f"{gpu} on {host}" if gpu else host
    ends = [_parts(end, indices, with_identity) for end in subject.removeprefix("link/").split(">")]
    (host, gpu), (other_host, other_gpu) = ends
    if host != other_host:
        return " → ".join(f"{gpu} on {host}" if gpu else host for host, gpu in ends)
    both = f"{gpu or host} → {other_gpu or other_host}"
    return f"{both} on {host}" if gpu and other_gpu else both


def _parts(end: str, indices: Mapping[str, int], with_identity: bool) -> tuple[str, str]:
    """Return a subject's host and its device in readable form; empty if the subject is the host itself."""
    host, _, identity = end.removeprefix("host/").partition("/gpu/")
    if not identity:
        return host, ""
    if identity.startswith("cpu-"):
        return host, f"CPU {identity.removeprefix('cpu-')}"
    index = indices.get(end)
    if index is None:
        return host, f"GPU {identity.removeprefix('GPU-')}"
    has_identity = with_identity and identity != str(index)
    return host, f"GPU {index} ({identity})" if has_identity else f"GPU {index}"
