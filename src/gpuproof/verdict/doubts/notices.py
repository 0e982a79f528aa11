"""Warnings as shown on a page: each fault once, and effects of other processes separately.

Input: the warnings stored in a result. Output: notices that name the launches and devices of a fault, and a
collapsed table of the signs of a disturbance or an unsteady machine in step times, with remedies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from gpuproof.base.groups import grouped
from gpuproof.records.page import Notice, Notices, Section, Table, Text, Tone
from gpuproof.records.page.tables import Column, table
from gpuproof.records.result import Doubt, weakening
from gpuproof.verdict.doubts.base import LIKELY, likely_first

CODES: Final = "docs/verdicts.md explains each [code]"
NEIGHBOURS = ("cpu-neighbours", "cpu-steal", "gpu-neighbours")
DISTURBED = ("gap-between-steps", "stalled", "unsteady", "noisy", "launches-differ", "steadiness-unknown")
"""Signs of other processes in step times."""
OF_ITSELF = ("stalled", "unsteady", "noisy", "launches-differ", "steadiness-unknown")
"""Signs of an unsteady machine or recipe; if there are two or more, they are reported in one line."""
SEEN_TO_CHANGE = {"stalled", "unsteady", "noisy"}
"""Codes, at least one of which must be present: warnings about too few launches, or about windows that cannot
be evaluated, are not evidence of a change."""
UNSTEADY: Final = "step time changed, and nothing else that was observed explains it"
OWN_MACHINE: Final = (
    "Warm up and measure longer (benchmark.warmup_steps and measure_steps, or measure_seconds if measured by "
    "time, or load.num_batches in the load suite); if it persists, check clocks and temperature, or use a "
    "machine whose host serves no one else"
)
LAUNCH = re.compile(r" \(launch (\d+)\)")
GPU = re.compile(r"\bGPU (\d+)")
FIGURE = re.compile(r"\d[\d,.]*(?= (?:%|→|MHz|°C|W|s|ms)(?!\w))")
"""Numbers that differ between launches or devices with the same fault; XID numbers are not among them."""
SHARE_OF_LAUNCHES = re.compile(r"in (\d+) of (\d+) launches")


def doubts_sections(doubts: Sequence[Doubt], title: str, *, num_launches: int | None) -> Iterator[Section]:
    """Yield the warnings, the likeliest cause first; signs of a disturbance are collapsed."""
    doubts = weakening(doubts)  # the limit is reported above
    ordered = likely_first(doubts)
    causes = [doubt for doubt in ordered if doubt.code in NEIGHBOURS]
    followed = [
        x for x in ordered if x.validity == "SUSPECT" and x.code in (DISTURBED if causes else OF_ITSELF)
    ]
    codes = {doubt.code for doubt in followed}
    if not causes and (len(followed) < len(ordered) or len(codes) == 1 or not codes & SEEN_TO_CHANGE):
        followed = []  # another warning may be the cause, and a single sign is clearest on its own
    notices = doubt_notices([x for x in ordered if x not in followed], num_launches=num_launches)
    more = [_contributing(causes, followed)] if followed else []
    yield Notices(title=title, notices=(*notices, *more))
    yield Text(title="", lines=(CODES,) if doubts else ())
    yield _folded(followed)


def doubt_notices(
    doubts: Sequence[Doubt], *, num_launches: int | None = None, side: str = ""
) -> tuple[Notice, ...]:
    """Lay out warnings, with one notice per fault; `side` is prefixed to their validity."""
    alike = grouped(((x.validity, x.code, x.remedy, _what(x.reason)), x) for x in doubts).values()
    return tuple(_notice(_joined(same, num_launches), side) for same in alike)


def _notice(doubt: Doubt, side: str) -> Notice:
    tone: Tone = "bad" if doubt.validity == "INVALID" else "warn"
    word = f"{side} {doubt.validity}".strip()
    return Notice(word=word, tone=tone, text=doubt.reason, advice=doubt.remedy, code=doubt.code)


def _what(reason: str) -> str:
    """Return a reason without the parts that are specific to a launch or device."""
    return FIGURE.sub("", GPU.sub("GPU", LAUNCH.sub("", reason))) if LAUNCH.search(reason) else reason


def _joined(alike: Sequence[Doubt], num_launches: int | None) -> Doubt:
    """Return the first of equal warnings, listing the launches, and the devices if there are several."""
    first = alike[0]
    if len(alike) == 1:
        return first
    launches = grouped(
        (" ".join(GPU.findall(x.reason)[:1]), number) for x in alike for number in LAUNCH.findall(x.reason)
    )
    gpus = grouped((tuple(dict.fromkeys(numbers)), gpu) for gpu, numbers in launches.items())
    of_all = f" of {num_launches}" if num_launches else ""
    places = [
        (f"GPU {', '.join(names)}: " if len(launches) > 1 else "")
        + f"launch{'es' * (len(numbers) > 1)} {', '.join(numbers)}{of_all}"
        for numbers, names in gpus.items()
    ]
    is_one = len({LAUNCH.sub("", GPU.sub("", doubt.reason)) for doubt in alike}) == 1
    note = "" if is_one else "; values are from the first"
    reason = LAUNCH.sub(lambda _: f" ({'; '.join(places)}{note})", first.reason, count=1)
    return Doubt(validity=first.validity, code=first.code, reason=reason, remedy=first.remedy)


def _contributing(causes: Sequence[Doubt], followed: Sequence[Doubt]) -> Notice:
    """Summarise the effects of other processes, or else of the machine itself, in one line."""
    codes = dict.fromkeys(doubt.code for doubt in followed)
    named = ", ".join(f"{LIKELY[code]} [{code}]" for code in codes)
    if not causes:
        return Notice(word="SUSPECT", tone="warn", text=f"{UNSTEADY}: {named}", advice=OWN_MACHINE)
    shares = [match for doubt in causes if (match := SHARE_OF_LAUNCHES.search(doubt.reason))]
    is_few = len(shares) == len(causes) and all(2 * int(x[1]) < int(x[2]) for x in shares)
    cause = "effects of such other work"
    if is_few:
        cause = f"such work was only seen {' and '.join(x[0] for x in shares)}, and may not explain"
    return Notice(word="also", tone="faint", text=f"{cause}: {named}")


def _folded(followed: Sequence[Doubt]) -> Table:
    """Lay out in full the warnings that are summarised in one line."""
    listed = table(
        f"{len(followed)} more, shown in full",
        followed,
        Column.of("", lambda doubt: f"{doubt.reason} [{doubt.code}]", align="left", folds=True),
        Column.of("", lambda doubt: f"→ {doubt.remedy}", align="left", folds=True),
    )
    return Table(title=listed.title, headers=listed.headers, rows=listed.rows, is_folded=True)
