"""How `monitor exec` names its files, which file it compares with, and what one failing file does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuproof.cli.monitor.record import name_config
from gpuproof.observe.derived import Wanted, write_derived
from recordings import header, identity, loaded, sample


@pytest.mark.parametrize(
    ("command", "config"),
    [
        (["python", "train.py", "--optimizer", "adamw"], "train"),
        (["torchrun", "--nproc=2", "/home/a b/my net.py"], "my_net"),
        (["./run.sh"], "run"),
        (["/usr/bin/nvidia-smi"], "nvidia-smi"),
        (["..."], "command"),
        ([], None),
    ],
)
def test_a_configuration_is_named_after_the_script(command: list[str], config: str | None) -> None:
    assert name_config(command) == config


def test_a_file_that_cannot_be_made_takes_none_of_the_others_with_it(tmp_path: Path) -> None:
    no_power = [sample(float(i), {0: {"util_gpu_percent": 50.0, "mem_used_bytes": 1.0}}) for i in range(3)]
    data = loaded(tmp_path, [header([identity()]), *no_power])
    stem = tmp_path / "gpu_stats_v1.5_20261120_100000"
    derived = write_derived(data, Wanted(stem=stem, format="gputop", metadata={}, plot=True))
    assert [path.name for path in derived.written] == [f"{stem.name}_summary.txt", f"{stem.name}_plot.png"]
    (failure,) = derived.failures
    assert "does not report power_w" in failure
    assert not list(tmp_path.glob(".gpu_stats*"))


def test_without_pillow_the_plot_alone_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    data = loaded(tmp_path, [header([identity()]), sample(0.0, {0: {"power_w": 1.0}})])
    derived = write_derived(data, Wanted(stem=tmp_path / "s", metadata={}, plot=True))
    assert [path.name for path in derived.written] == ["s.json", "s_summary.txt"]
    assert "pip install 'gpuproof[monitor]'" in derived.failures[0]
