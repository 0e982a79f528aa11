"""Recorded runs of real machines, read again: the figures and the verdict that were given stay the same.

`disturbed_cpu` was taken on a shared virtual machine with two processors while other programs ran on it;
its host's name and system are replaced. Its doubts are real.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from running import gpuproof

HERE = Path(__file__).parent


def test_a_run_on_a_crowded_machine_is_not_trusted(
    golden: Callable[[str, str], None], tmp_path: Path
) -> None:
    shutil.copytree(HERE / "disturbed_cpu", tmp_path / "disturbed_cpu")
    shown = gpuproof("report", "disturbed_cpu", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    golden("disturbed_cpu.txt", shown.stdout)
    again = gpuproof("report", "disturbed_cpu", cwd=tmp_path)
    assert again.stdout == shown.stdout
