"""How launches were started, in results and on pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from concluding import words_of
from gpuproof.campaign.conclude import conclude
from gpuproof.records.run import Start
from records_by_hand import write_run
from served_by_hand import records


@pytest.mark.parametrize("how", ["exec", "fork"])
def test_forked_launches_of_requests_are_told_as_forked(how: Any, tmp_path: Path) -> None:
    launches = []
    for replicate in range(3):
        served = records([0.01 + replicate / 1000] * 200)
        own = tuple(replace(x, start=how) if isinstance(x, Start) else x for x in served.records)
        launches.append(
            replace(served, case=replace(served.case, replicate=replicate, start=how), records=own)
        )
    done = conclude(
        write_run(
            tmp_path,
            launches,
            kind="serving",
            serving={"rate_per_s": 100.0, "min_requests": 100},
            run={"repeats": 3},
        )
    )
    starts = {launch.start for measure in done.result.measures for launch in measure.launches}
    assert starts == {how}
    assert ("launches were forked from one process" in words_of(done)) is (how == "fork")
    assert ("each launch uses fresh processes" in words_of(done)) is (how == "exec")
