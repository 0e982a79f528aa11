"""Run directories that somebody changed: each is concluded, or refused in one paragraph."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuproof.conclude import conclude
from gpuproof.errors import GpuproofError
from gpuproof.store.run import RunDirectory

RUNS = Path(__file__).parent / "runs"
KINDS = sorted({path.name for path in RUNS.iterdir()} - {"one_rank"})
"""All but one that has no file or record that `two_ranks` has not."""
MUTATIONS = 12
"""Of each kind of run; more were tried by hand: 2,000 over all kinds."""
ODD: tuple[Any, ...] = (
    None,
    -1,
    0,
    10**13,
    10**400,
    float("inf"),
    float("nan"),
    "x",
    "",
    [],
    {},
    True,
    "../../etc",
    [1, 2],
    {"a": 1},
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*at, key)
        yield from places(item, (*at, key))


def mutated(value: Any, draw: random.Random) -> Any:
    """Take a value out of JSON, or put an odd one in its place."""
    known = list(places(value))
    if not known:
        return value
    *way, last = draw.choice(known)
    holder = value
    for key in way:
        holder = holder[key]
    if draw.random() < 0.3:
        del holder[last]
    else:
        holder[last] = draw.choice(ODD)
    return value


def damage(path: Path, draw: random.Random) -> None:
    """Change one value of a file, or take out, cut or double a line of it."""
    if path.suffix == ".json":
        path.write_text(json.dumps(mutated(json.loads(path.read_text()), draw)))
        return
    lines = path.read_text().splitlines()
    place = draw.randrange(len(lines))
    line = lines[place]
    changed = [[], [line, line], [line[: len(line) // 2]], [json.dumps(mutated(json.loads(line), draw))]]
    lines[place : place + 1] = draw.choices(changed, weights=(15, 10, 10, 65))[0]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_run_is_concluded_or_refused_in_a_paragraph(kind: str, tmp_path: Path) -> None:
    draw = random.Random(kind)
    source = RUNS / kind / "run"
    files = sorted(p.relative_to(source) for p in source.rglob("*.json*") if p.stat().st_size)
    ends = []
    for number in range(MUTATIONS):
        root = tmp_path / str(number)
        shutil.copytree(source, root)
        damage(root / draw.choice(files), draw)
        try:
            conclude(RunDirectory.open(root))
        except GpuproofError as error:
            ends.append(str(error))
        else:
            ends.append("concluded")
    assert len(ends) == MUTATIONS
    assert not any("\n" in end for end in ends)
