"""`gpuproof monitor show | compare | plot | serve | live` as a user starts them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from pathlib import Path

import pytest

import recordings as rec
from waiting import eventually

PNG = b"\x89PNG\r\n\x1a\n"


def monitor(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuproof", "monitor", *arguments]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=300)


def recorded(path: Path, *, watts: float, gpus: int = 1) -> Path:
    """A hundred busy seconds; power is `watts` within 5 W, at random but the same each time."""
    noise = random.Random(watts)
    samples = [
        rec.sample(
            t,
            {
                g: {
                    "util_gpu_percent": 90.0 - 20 * g,
                    "power_w": watts + noise.uniform(-5, 5),
                    "power_limit_w": 400.0,
                    "mem_used_bytes": 4.0 * rec.GIB,
                }
                for g in range(gpus)
            },
        )
        for t in range(101)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    head = rec.header([rec.identity(g) for g in range(gpus)])
    return rec.write(path, [head, rec.mark(0, phase="train"), *samples, rec.end(100, samples=101)])


@pytest.mark.promise("R4.6")
def test_show_prints_the_summary_and_the_balance(tmp_path: Path) -> None:
    recorded(tmp_path / "run.jsonl", watts=300.0, gpus=2)
    done = monitor("show", "--balance", "run.jsonl", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "GPU 1: Fake GPU 80" in done.stdout
    assert re.search(
        r"energy +(29\.9|30\.0|30\.1) kJ \(8\.3\d Wh\) +power integrated over time, 100 %", done.stdout
    )
    assert "GPU utilisation  varies by 17.7 %  fair, over 2 GPUs" in done.stdout


@pytest.mark.promise("S4.3", "S4.8", "S4.9", "F4.4")
def test_compare_takes_the_newest_match_and_says_so(tmp_path: Path) -> None:
    for age, (name, watts) in enumerate((("a_1", 100.0), ("a_2", 300.0), ("b_1", 330.0))):
        path = recorded(tmp_path / "results" / f"gpu_stats_{name}.jsonl", watts=watts)
        os.utime(path, (1000 + age, 1000 + age))
    done = monitor(
        "compare",
        "results/gpu_stats_a_*",
        "results/gpu_stats_b_*",
        "--phase=train",
        "--plot=both.png",
        folder=tmp_path,
    )
    assert done.returncode == 0
    assert "matches 2 recordings; using the newest, results/gpu_stats_a_2.jsonl" in done.stderr
    assert re.search(r"power +300 W +330 W +\+[23]\d\.\d W \(\+\d+\.?\d* %\) .* higher", done.stdout)
    assert "some conditions are unknown" in done.stdout  # the fake GPU tells no MIG or ECC mode
    assert (tmp_path / "both.png").read_bytes().startswith(PNG)


def test_what_a_shell_resolved_to_three_files_is_refused_with_the_remedy(tmp_path: Path) -> None:
    done = monitor("compare", "a", "b", "c", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "takes two recordings, A and B; 3 given. Quote each pattern" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.promise("S4.10", "S4.15")
def test_the_memory_of_a_directory_is_drawn_in_its_graphs(tmp_path: Path) -> None:
    for name in ("lenet5_adam", "lenet5_sgd"):
        recorded(tmp_path / "test_matrix_results_1" / name / f"gpu_stats_{name}.jsonl", watts=300.0)
    done = monitor("plot", "--kind", "memory", "test_matrix_results_1", folder=tmp_path)
    drawn = Path("test_matrix_results_1/graphs/gpu_memory_timeline.png")
    assert (done.returncode, done.stderr) == (0, f"gpuproof: wrote {drawn}\n")
    assert (tmp_path / drawn).read_bytes().startswith(PNG)


@pytest.mark.promise("S4.3")
def test_plot_writes_beside_the_recording_and_a_directory_becomes_one_timeline(tmp_path: Path) -> None:
    one = recorded(tmp_path / "matrix" / "lenet5_adam" / "gpu_stats_adam.jsonl", watts=300.0)
    recorded(tmp_path / "matrix" / "lenet5_sgd" / "gpu_stats_sgd.jsonl", watts=200.0, gpus=2)
    assert monitor("plot", str(one), folder=tmp_path).returncode == 0
    assert (one.parent / "gpu_stats_adam_plot.png").read_bytes().startswith(PNG)
    done = monitor("plot", "--kind=memory", "-o", "graphs/memory.png", "matrix", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "gpuproof: wrote graphs/memory.png\n")
    assert (tmp_path / "graphs" / "memory.png").read_bytes().startswith(PNG)
    assert monitor("plot", "--kind=balance", "matrix", folder=tmp_path).returncode == 0


def test_a_missing_file_and_an_empty_directory_are_one_paragraph(tmp_path: Path) -> None:
    for arguments in (("show", "none.jsonl"), ("plot", "."), ("live", "none.jsonl"), ("serve", "none.jsonl")):
        done = monitor(*arguments, folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("gpuproof: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("live",), "monitor live: needs a terminal"),
        (("show", "empty.jsonl"), "empty.jsonl: is empty"),
        (("plot", "-o", "run.xyz", "run.jsonl"), "run.xyz: is not a supported picture format"),
        (("compare", "run.jsonl"), "monitor compare: takes two recordings, A and B; 1 given"),
    ],
)
def test_a_mistake_is_one_paragraph_with_its_place(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    recorded(tmp_path / "run.jsonl", watts=300.0)
    (tmp_path / "empty.jsonl").touch()
    done = monitor(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gpuproof: {said}")
    assert done.stderr.count("\n") == 1


def test_what_the_sampler_refuses_is_a_mistake_of_the_user_to_serve_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuproof", "monitor", "serve", "--port=0", "--devices=7"]
    environment = {**os.environ, "GPUPROOF_FAKE_DEVICES": "2"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.endswith("gpuproof: --devices 7: this host has 2 GPU(s). Indices start at 0.\n")


def test_serve_answers_until_it_is_told_to_stop_and_leaves_no_sampler(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuproof", "monitor", "serve", "--port=0", "--interval=0.1"]
    environment = {**os.environ, "GPUPROOF_FAKE_DEVICES": "2"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stderr is not None
    url = process.stderr.readline().removeprefix("gpuproof: serving ").strip()

    def with_readings() -> str:
        with urllib.request.urlopen(url, timeout=120) as answer:
            text: str = answer.read().decode()
        return text if "gpuproof_gpu_power_watts" in text else ""

    text = eventually("readings of a GPU", with_readings)
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=300)
    assert 'gpuproof_gpu_power_watts{host="' in text
    assert (process.returncode, output, errors) == (0, "", "")


def test_the_text_of_show_comes_from_any_format(tmp_path: Path) -> None:
    rows = [
        {
            "timestamp": f"2026-11-20T13:30:{t:02d}",
            "gpu_name": "Old GPU",
            "gpu_type": "nvidia",
            "utilization": 80,
            "memory_used": 1024,
            "memory_total": 2048,
            "memory_percent": 50.0,
            "power": 200,
            "temperature": 60,
            "fan_speed": 0,
            "elapsed_seconds": t,
        }
        for t in range(10)
    ]
    (tmp_path / "gpu_stats_old.json").write_text(json.dumps(rows), encoding="utf-8")
    done = monitor("show", "gpu_stats_old.json", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Old GPU" in done.stdout
    assert re.search(r"memory used +10 +1\.00 GiB", done.stdout)
    assert re.search(r"throttled +–", done.stdout)


@pytest.mark.promise("S4.1", "R4.1")
def test_the_live_view_runs_in_a_terminal_and_q_ends_it(tmp_path: Path) -> None:
    control, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
    environment = {**os.environ, "GPUPROOF_FAKE_DEVICES": "3:xid", "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuproof", "monitor", "live", "--interval=0.1"],
        cwd=tmp_path,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    seen = read_until(control, b"xid")
    os.write(control, b"q")
    seen += read_until(control, b"\x1b[?1049l")
    assert process.wait(timeout=300) == 0
    os.close(control)
    assert b"\x1b[?1049h" in seen  # on a screen of its own, given back at the end
    assert b"3 GPU(s)" in seen


def test_live_reads_records_from_a_pipe_and_keys_from_the_terminal(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "run.jsonl", watts=300.0)
    torn = "".join(recording.read_text(encoding="utf-8").splitlines(keepends=True)[:-1])
    recording.write_text(torn, encoding="utf-8")  # the one who wrote it died: no last record
    script = f"cat {shlex.quote(str(recording))} | {shlex.quote(sys.executable)} -m gpuproof monitor live -"
    pid, control = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 150, 0, 0))
        os.execve("/bin/sh", ["sh", "-c", script], {**os.environ, "TERM": "xterm-256color"})
    seen = read_until(control, b"readings stopped")
    os.write(control, b"q")
    read_until(control, b"\x1b[?1049l")
    _, status = os.waitpid(pid, 0)
    os.close(control)
    assert b"101 samples" in seen
    assert os.waitstatus_to_exitcode(status) == 0


def test_live_that_has_no_terminal_for_keys_says_so(tmp_path: Path) -> None:
    control, terminal = pty.openpty()
    command = [sys.executable, "-m", "gpuproof", "monitor", "live", "-"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        start_new_session=True,
    )
    os.close(terminal)
    os.close(control)
    assert done.returncode == 2
    assert done.stderr.startswith("gpuproof: monitor live -: has no terminal to read keys from")


def read_until(descriptor: int, expected: bytes) -> bytes:
    """Read what a terminal shows until it shows `expected`."""
    seen = b""
    deadline = time.monotonic() + 300
    while expected not in seen:
        assert time.monotonic() < deadline, seen[-2000:]
        if select.select([descriptor], [], [], 0.5)[0]:
            seen += os.read(descriptor, 65536)
    return seen


def test_serve_writes_a_textfile_and_alerts_writes_its_files(tmp_path: Path) -> None:
    (tmp_path / "collector").mkdir()
    command = [sys.executable, "-m", "gpuproof", "monitor", "serve", "--textfile=collector", "--interval=0.1"]
    environment = {**os.environ, "GPUPROOF_FAKE_DEVICES": "2"}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, stderr=subprocess.PIPE)
    path = tmp_path / "collector/gpuproof.prom"
    eventually(
        "readings of a GPU",
        lambda: path.exists() and "gpuproof_gpu_power_watts" in path.read_text(encoding="utf-8"),
    )
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "gpuproof: writing collector/gpuproof.prom\n")
    assert "gpuproof_sampler_up 0.0" in path.read_text(encoding="utf-8")
    refused = monitor("serve", "--textfile=collector", "--password-file=none", folder=tmp_path)
    assert refused.returncode == 2
    done = monitor("alerts", "rules", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "rules/gpuproof_alerts.yml\nrules/gpuproof_dashboard.json\n"


def test_devices_prints_every_static_fact_once_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPROOF_FAKE_DEVICES", "2")
    told = json.loads(monitor("devices", "--json", folder=tmp_path).stdout)
    assert [device["static"]["mem_total_bytes"] for device in told["devices"]] == [16 * rec.GIB] * 2
    text = monitor("devices", folder=tmp_path).stdout
    for fact in told["devices"][0]["static"]:
        assert fact.removesuffix("_bytes").split("_")[0] in text
    assert text.count("16.0 GiB") == 1
    assert "GPU 1: FAKE-0001" in text
    assert "unknown" in text


def test_one_look_is_plain_text_and_needs_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPROOF_FAKE_DEVICES", "2:thermal")
    monkeypatch.setenv("COLUMNS", "80")
    done = monitor("live", "--once", "--interval=0.2", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "▲ software thermal slowdown" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
