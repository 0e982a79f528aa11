"""Why figures are doubted, as a page says it: alike faults once, and what others cause apart.

In: the doubts of a result, which keeps each. Out: notices that name the launches and devices of a fault, and
a folded table of what a disturbance, or a machine that is unsteady, leaves in step times, with its remedies.
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

CODES: Final = "docs/verdicts.md says of each [code] why it matters and what to do"
NEIGHBOURS = ("cpu-neighbours", "cpu-steal", "gpu-neighbours")
DISTURBED = ("gap-between-steps", "stalled", "unsteady", "noisy", "launches-differ", "steadiness-unknown")
"""What they leave in step times."""
OF_ITSELF = ("stalled", "unsteady", "noisy", "launches-differ", "steadiness-unknown")
"""What a machine, or a recipe, leaves there that is unsteady by itself; two of them are told in one line."""
SEEN_TO_CHANGE = {"stalled", "unsteady", "noisy"}
"""One of them has to be there: launches that are too few, and windows not to be judged, show no change."""
UNSTEADY: Final = "the pace of the steps changed, and nothing that was seen beside them explains it"
OWN_MACHINE: Final = (
    "Warm up and measure longer (benchmark.warmup_steps, benchmark.measure_seconds); if it stays so, look at "
    "clocks and temperature, or take a machine whose host serves nobody else"
)
LAUNCH = re.compile(r" \(launch (\d+)\)")
GPU = re.compile(r"\bGPU (\d+)")
FIGURE = re.compile(r"\d[\d,.]*(?= (?:%|→|MHz|°C|W|s|ms)(?!\w))")
"""What a launch or a device of the same fault has otherwise; the number of an XID is none."""
SHARE_OF_LAUNCHES = re.compile(r"in (\d+) of (\d+) launches")


def doubts_sections(doubts: Sequence[Doubt], title: str, *, num_launches: int | None) -> Iterator[Section]:
    """Yield the doubts, the likeliest cause first; what a disturbance leaves is folded."""
    doubts = weakening(doubts)  # what limited it is said above
    ordered = likely_first(doubts)
    causes = [doubt for doubt in ordered if doubt.code in NEIGHBOURS]
    followed = [
        x for x in ordered if x.validity == "SUSPECT" and x.code in (DISTURBED if causes else OF_ITSELF)
    ]
    codes = {doubt.code for doubt in followed}
    if not causes and (len(followed) < len(ordered) or len(codes) == 1 or not codes & SEEN_TO_CHANGE):
        followed = []  # what else was seen may be the cause, and one says it best itself
    notices = doubt_notices([x for x in ordered if x not in followed], num_launches=num_launches)
    more = [_contributing(causes, followed)] if followed else []
    yield Notices(title=title, notices=(*notices, *more))
    yield Text(title="", lines=(CODES,) if doubts else ())
    yield _folded(followed)


def doubt_notices(
    doubts: Sequence[Doubt], *, num_launches: int | None = None, side: str = ""
) -> tuple[Notice, ...]:
    """Lay out doubts, those of one fault in one notice; `side` stands before their word."""
    alike = grouped(((x.validity, x.code, x.remedy, _what(x.reason)), x) for x in doubts).values()
    return tuple(_notice(_joined(same, num_launches), side) for same in alike)


def _notice(doubt: Doubt, side: str) -> Notice:
    tone: Tone = "bad" if doubt.validity == "INVALID" else "warn"
    word = f"{side} {doubt.validity}".strip()
    return Notice(word=word, tone=tone, text=doubt.reason, advice=doubt.remedy, code=doubt.code)


def _what(reason: str) -> str:
    """Return a reason without what tells one launch or device of a fault from another."""
    return FIGURE.sub("", GPU.sub("GPU", LAUNCH.sub("", reason))) if LAUNCH.search(reason) else reason


def _joined(alike: Sequence[Doubt], num_launches: int | None) -> Doubt:
    """Return the first of alike doubts, which names the launches, and the devices where there are several."""
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
    note = "" if is_one else "; figures are of the first"
    reason = LAUNCH.sub(lambda _: f" ({'; '.join(places)}{note})", first.reason, count=1)
    return Doubt(validity=first.validity, code=first.code, reason=reason, remedy=first.remedy)


def _contributing(causes: Sequence[Doubt], followed: Sequence[Doubt]) -> Notice:
    """Name in one line what others on the machine cause, or may have; without any, what the machine does."""
    codes = dict.fromkeys(doubt.code for doubt in followed)
    named = ", ".join(f"{LIKELY[code]} [{code}]" for code in codes)
    if not causes:
        return Notice(word="SUSPECT", tone="warn", text=f"{UNSTEADY}: {named}", advice=OWN_MACHINE)
    shares = [match for doubt in causes if (match := SHARE_OF_LAUNCHES.search(doubt.reason))]
    is_few = len(shares) == len(causes) and all(2 * int(x[1]) < int(x[2]) for x in shares)
    cause = "as such work beside it causes"
    if is_few:
        cause = f"such work was seen {' and '.join(x[0] for x in shares)} alone, and may not explain"
    return Notice(word="besides", tone="faint", text=f"{cause}: {named}")


def _folded(followed: Sequence[Doubt]) -> Table:
    """Lay out in full what one line names."""
    listed = table(
        f"Besides: {len(followed)} more, in full",
        followed,
        Column.of("", lambda doubt: f"{doubt.reason} [{doubt.code}]", align="left", folds=True),
        Column.of("", lambda doubt: f"→ {doubt.remedy}", align="left", folds=True),
    )
    return Table(title=listed.title, headers=listed.headers, rows=listed.rows, is_folded=True)
