"""Which device does a UUID name? Drivers and frameworks write one identity in several forms.

NVML writes `GPU-…` for a GPU and `MIG-…` for an instance of one, which was `MIG-GPU-…/instance/compute` with
the number of its GPU before driver 470. torch writes the number alone, whatever it is of, and we put `GPU-`
before it.

>>> bare_uuid("GPU-0a") == bare_uuid("MIG-0a") == bare_uuid("0a")
True
>>> bare_uuid("MIG-GPU-0a/1/0")
'0a/1/0'
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

PREFIXES = ("MIG-", "GPU-")


def bare_uuid(uuid: str) -> str:
    """Return what all spellings of an identity have in common."""
    for prefix in PREFIXES:
        uuid = uuid.removeprefix(prefix)
    return uuid


def spellings(uuid: str) -> tuple[str, ...]:
    """Return the forms in which a driver may know it, as it is written first.

    >>> spellings("GPU-0a")
    ('GPU-0a', 'MIG-0a')
    """
    bare = bare_uuid(uuid)
    known = (f"MIG-GPU-{bare}",) if "/" in bare else (f"GPU-{bare}", f"MIG-{bare}")
    return tuple(dict.fromkeys((uuid, *known) if uuid != bare else known))


def named_among(asked: Collection[str], listed: Sequence[str | None]) -> set[int]:
    """Return the places of the listed devices that are asked for.

    An instance that is not listed, of the older form, is answered by its GPU, which is.
    """
    places = {bare_uuid(uuid): place for place, uuid in enumerate(listed) if uuid is not None}
    found = (places.get(bare, places.get(bare.partition("/")[0])) for bare in map(bare_uuid, asked))
    return {place for place in found if place is not None}
