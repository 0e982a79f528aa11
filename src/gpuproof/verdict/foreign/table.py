"""Thresholds of any owner, as a table: CSV with a header, one a row, in base units.

Columns: name, quantity, value, unit, and any of the conditions that are known: board, chip, dtype, direction,
operation, size_bytes, num_hosts, num_devices, ranks_per_host, cards_bytes_per_s, option, setting, model, and
comment. An empty cell is unknown. A row whose board is empty is for any machine.
"""

from __future__ import annotations

import csv
import io

from gpuproof.config.settings import ConfigError, Mistake
from gpuproof.verdict.foreign.thresholds import Threshold, needing_some

NEEDED = ("name", "quantity", "value", "unit")
WHOLE_NUMBERS = ("size_bytes", "num_hosts", "num_devices", "ranks_per_host")
NUMBERS = ("cards_bytes_per_s",)
WORDS = ("board", "chip", "dtype", "direction", "operation", "option", "setting", "model")
COLUMNS = (*NEEDED, *WORDS, *WHOLE_NUMBERS, *NUMBERS, "comment")


def read_table(text: str, *, source: str) -> list[Threshold]:
    """Read the rows.

    Raises:
        UsageError: a column is missing or unknown, or a cell is no number.
    """
    rows = csv.DictReader(io.StringIO(text))
    header = rows.fieldnames or ()
    mistakes = [
        *(f"the column {name} is missing" for name in NEEDED if name not in header),
        *(f"unknown column {name}" for name in header if name not in COLUMNS),
    ]
    if mistakes:
        raise ConfigError(
            Mistake(place=f"{source}:1", line=1, cause=cause, next_step=f"Columns: {', '.join(COLUMNS)}")
            for cause in mistakes
        )
    thresholds = [_threshold(row, f"{source}:{rows.line_num}", rows.line_num) for row in rows]
    return needing_some(thresholds, source=source, form="a table")


def _threshold(row: dict[str, str | None], place: str, line: int) -> Threshold:
    def number(name: str) -> float | None:
        try:
            return float(row[name] or "") if row.get(name) else None
        except ValueError:
            cause = f"{row[name]!r} is no number"
            raise ConfigError([Mistake(place=f"{place}: {name}", line=line, cause=cause)]) from None

    conditions: dict[str, object] = {name: row[name] for name in WORDS if row.get(name)}
    conditions |= {name: int(whole) for name in WHOLE_NUMBERS if (whole := number(name)) is not None}
    conditions |= {name: whole for name in NUMBERS if (whole := number(name)) is not None}
    return Threshold(
        place=place,
        name=row["name"] or "",
        quantity=row["quantity"] or "",
        value=number("value"),
        unit=row["unit"] or "",
        conditions={"any_machine": not row.get("board"), **conditions},
        comment=row.get("comment") or "",
    )
