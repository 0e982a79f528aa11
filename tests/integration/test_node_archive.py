"""The node side in one file, on a Python that has nothing but its standard library, is a whole monitor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import recordings as r
from gpuproof.cli.main import cli
from gpuproof.launchers.archive import build_archive
from gpuproof.readings.recording import load_recording
from gpuproof.records.journal import encode


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return build_archive(tmp_path / "a node's file.pyz")


@pytest.mark.promise("S4.5")
def test_the_archive_alone_records_a_command(archive: Path, tmp_path: Path) -> None:
    bare_python = str(sys._base_executable)  # type: ignore[attr-defined]  # of the environment's Python
    out = tmp_path / "r.jsonl"
    work = (
        """echo '{"phase": "train"}' >&$GPUPROOF_MARKS_FD; """
        f"""until [ "$(grep -c '"kind":"sample"' {out})" -ge 3 ]; do sleep 0.1; done; exit 6"""
    )
    done = subprocess.run(
        [bare_python, str(archive), "record", "--interval=0.1", f"--out={out}", "--", "sh", "-c", work],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "GPUPROOF_FAKE_DEVICES": "1", "PYTHONNOUSERSITE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 6, done.stderr
    assert done.stderr == f"gpuproof: readings are in {out}\n"
    data = load_recording(out)
    assert data.end is not None
    assert data.end.exit_code == 6
    assert len(data.time_s) >= 3
    assert [phase.name for phase in data.phases()] == ["train"]
    assert data.host["mem_used_bytes"][0] > 0


def recorded(path: Path, *, power_w: float) -> Path:
    lines: list[object] = [r.header([r.identity(0)])]
    lines += [
        r.sample(float(second), {0: {"util_gpu_percent": 90.0, "power_w": power_w}}) for second in range(30)
    ]
    path.write_text("".join(encode(line) + "\n" for line in [*lines, r.end(30.0, samples=30)]))
    return path


def read_on_node(
    archive: Path, *words: str, python: tuple[str, ...] = (sys.executable,)
) -> tuple[int, str, str]:
    done = subprocess.run(
        [*python, str(archive), *words], capture_output=True, text=True, cwd=archive.parent, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.promise("S4.5")
def test_the_archive_shows_and_compares_as_gpuproof_does(archive: Path, tmp_path: Path) -> None:
    first, second = (
        recorded(tmp_path / "a.jsonl", power_w=300.0),
        recorded(tmp_path / "b.jsonl", power_w=330.0),
    )
    shown = CliRunner().invoke(cli, ["monitor", "show", str(first), "--format=markdown"]).stdout
    compared = (
        CliRunner().invoke(cli, ["monitor", "compare", str(first), str(second), "--format=markdown"]).stdout
    )
    assert "power" in shown
    assert "power" in compared
    assert read_on_node(archive, "show", str(first)) == (0, shown, "")
    code, on_node, error = read_on_node(archive, "compare", str(first), str(second))
    assert (code, error) == (0, "")
    typed = ("- `", "- no CUDA or ROCm, torch", "- no command")
    without = [
        [line for line in text.splitlines() if not line.startswith(typed)] for text in (compared, on_node)
    ]
    assert without[0] == without[1]


def test_a_node_without_numpy_is_told_what_reads_recordings(archive: Path, tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.jsonl", power_w=300.0)
    code, out, error = read_on_node(archive, "show", str(path), python=(sys.executable, "-I", "-S"))
    assert (code, out) == (5, "")
    assert error == (
        "gpuproof: show: needs the Python package numpy, which is not installed. Use a Python with numpy, "
        "or, if gpuproof is installed: gpuproof monitor show.\n"
    )


def test_a_recording_that_is_not_there_is_a_sentence(archive: Path) -> None:
    code, _, error = read_on_node(archive, "compare", "here.jsonl", "there.jsonl")
    assert (code, error) == (2, "gpuproof: here.jsonl: No such file or directory.\n")


def test_help_of_the_archive_names_both_halves(archive: Path) -> None:
    code, out, _ = read_on_node(archive, "--help")
    assert code == 0
    assert {"show", "compare", "record", "sample"} <= {
        line.split()[0] for line in out.splitlines() if line.split()
    }
