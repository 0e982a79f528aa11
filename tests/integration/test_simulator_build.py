"""The simulator's C++ part: compiled by one of those who start together, and a missing tool is named."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuproof.base.errors import EnvironmentUnfitError
from simulating import needs_simulator

pytestmark = needs_simulator


def test_of_eight_that_start_together_one_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuproof_simgpu import build

    compiled: list[Path] = []

    def compile_slowly(library: Path) -> None:
        compiled.append(library)
        time.sleep(0.2)
        library.write_text("compiled")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_compile", compile_slowly)
    monkeypatch.setattr(build, "_imported", Path.read_text)
    with ThreadPoolExecutor(8) as starters:
        loaded: list[object] = list(starters.map(lambda _: build.load_device(), range(8)))
    assert loaded == ["compiled"] * 8
    assert len(compiled) == 1
    build.load_device()
    assert len(compiled) == 1  # and never again


@pytest.mark.parametrize(
    ("variable", "value", "missing"),
    [
        ("CXX", "no-such-compiler", "a C++ compiler (no-such-compiler)"),
        ("PATH", "/nowhere", "a C++ compiler (c++)"),
    ],
)
def test_a_missing_compiler_is_named(
    variable: str, value: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuproof_simgpu import build

    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(variable, value)
    with pytest.raises(EnvironmentUnfitError) as refused:
        build.load_device()
    assert missing in str(refused.value)
    assert "apt-get install g++" in str(refused.value)
