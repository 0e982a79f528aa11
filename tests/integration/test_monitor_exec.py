"""`gpuproof monitor exec` as people run it: real processes, real signals, a terminal, and no mercy."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from gpuproof.observe.recording_page import values_line
from gpuproof.processes.start import our_command
from gpuproof.readings.recording import RecordingData, load_recording
from gpuproof.readings.summary import summarise
from gpuproof.records.run import PhaseName
from running import MEASURED

EXEC = [sys.executable, "-P", "-m", "gpuproof", "monitor", "exec"]
"""As the installed script does it: without the working directory on the path."""
PATIENCE_S = 300.0


def environment(fake: str | None = "2") -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUPROOF_")}
    return env if fake is None else {**env, "GPUPROOF_FAKE_DEVICES": fake}


def run(tmp_path: Path, *arguments: str, fake: str | None = "2") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EXEC, *arguments],
        cwd=tmp_path,
        env=environment(fake),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
    )


def start(tmp_path: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*EXEC, *arguments],
        cwd=tmp_path,
        env={**environment(), "TMPDIR": str(tmp_path)},  # what a killed monitor leaves stays here
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def wait_for(condition: Callable[[], Any]) -> Any:
    """Wait until something holds; the deadline only bounds a test that has failed."""
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    pytest.fail("waited in vain")


def samples_of(tmp_path: Path) -> int:
    """How many samples the recording has so far."""
    return sum(path.read_text().count('{"kind":"sample"') for path in tmp_path.glob("results/*.jsonl"))


SAMPLED = """
import time
from pathlib import Path
def wait_for_samples(number, *, after_mark=0):
    while True:
        lines = "".join(path.read_text() for path in Path("results").glob("*.jsonl")).splitlines()
        marks = [at for at, line in enumerate(lines) if line.startswith('{"kind":"mark"')]
        if len(marks) >= after_mark:
            later = lines[marks[after_mark - 1] :] if after_mark else lines
            if sum(line.startswith('{"kind":"sample"') for line in later) >= number:
                return
        time.sleep(0.05)
"""
"""For a command that goes on once its recording has so many samples, after so many marks."""


def recording(tmp_path: Path) -> RecordingData:
    (path,) = (tmp_path / "results").glob("*.jsonl")
    return load_recording(path)


def names(tmp_path: Path) -> list[str]:
    """The endings of the files, in order."""
    return sorted(path.name.partition("_20")[2][13:] for path in (tmp_path / "results").iterdir())


SIGNALS_SEEN = """
import signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda n, _frame: seen.append(n))
print("ready", flush=True)
while not seen:
    time.sleep(0.02)
time.sleep(0.5)
print([signal.Signals(n).name for n in seen], flush=True)
sys.exit(9)
"""


@pytest.mark.promise("F4.10")
@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_commands_own_exit_code_comes_back_and_the_files_are_there(tmp_path: Path, code: int) -> None:
    done = run(
        tmp_path, "--config-name", "c", "--", "sh", "-c", f"echo out; echo err >&2; sleep 0.3; exit {code}"
    )
    assert done.returncode == code
    assert done.stdout == "out\n"
    assert done.stderr.startswith("err\n")
    (written,) = [line for line in done.stderr.splitlines() if line.startswith("gpuproof: wrote ")]
    assert all((tmp_path / name).is_file() for name in written.removeprefix("gpuproof: wrote ").split(", "))
    assert names(tmp_path) == [".json", ".jsonl", "_summary.txt"]
    assert done.stderr.splitlines()[-1] == f"gpuproof: {values_line(summarise(recording(tmp_path)))}"
    end = recording(tmp_path).end
    assert end is not None
    assert (end.reason, end.exit_code) == ("command ended", code)


def test_a_command_that_is_killed_ends_as_in_a_shell_and_keeps_its_files(tmp_path: Path) -> None:
    done = run(tmp_path, "--", "sh", "-c", "kill -KILL $$")
    assert done.returncode == 128 + signal.SIGKILL
    assert names(tmp_path) == [".json", ".jsonl", "_summary.txt"]
    end = recording(tmp_path).end
    assert end is not None
    assert end.exit_code == -signal.SIGKILL


def test_a_directory_that_the_command_removes_changes_no_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, "--output-dir", "gone", "--", "sh", "-c", "rm -r gone; exit 7")
    assert done.returncode == 7
    assert "was removed while the command ran: no readings are left" in done.stderr
    assert "Traceback" not in done.stderr


def test_neither_a_full_disk_nor_lost_output_changes_the_exit_code(tmp_path: Path) -> None:
    words = [*EXEC, "--output-dir", "out", "--", "sh", "-c", "exit 7"]
    script = 'ulimit -f 1; "$@" >&- 2>/dev/full'  # a file may have 1 KiB: no recording fits
    done = subprocess.run(["bash", "-c", script, "bash", *words], cwd=tmp_path, env=environment())
    assert done.returncode == 7
    assert not (tmp_path / "out").exists()


def test_a_command_that_is_not_there_is_said_as_a_shell_says_it(tmp_path: Path) -> None:
    done = run(tmp_path, "--", "no-such-command-here")
    assert done.returncode == 127
    assert "gpuproof: no-such-command-here: command not found." in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "plain").write_text("text")
    assert run(tmp_path, "--", "./plain").returncode == 126
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_sent_to_the_monitor_reaches_the_command_once(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = start(tmp_path, "--", sys.executable, "-c", SIGNALS_SEEN)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert stdout == f"['{number.name}']\n"
    assert process.returncode == 9
    assert "Traceback" not in stderr
    assert ".json" in names(tmp_path)


SIGNALS_SAID = """
import signal, sys, time
def say(number, _frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGHUP:
        time.sleep(0.5)
        sys.exit(9)
for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(number, say)
print("ready", flush=True)
while True:
    time.sleep(0.02)
"""


def test_a_signal_sent_to_the_whole_group_reaches_the_command_once(tmp_path: Path) -> None:
    process = start(tmp_path, "--", sys.executable, "-c", SIGNALS_SAID, process_group=0)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for send, number in (
        (os.killpg, signal.SIGUSR1),
        (os.kill, signal.SIGINT),
        (os.killpg, signal.SIGUSR2),
        (os.kill, signal.SIGHUP),
    ):
        send(process.pid, number)
        assert process.stdout.readline() == f"{number.name}\n"
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (stdout, process.returncode) == ("", 9)
    assert "Traceback" not in stderr


def test_ctrl_c_on_a_terminal_reaches_the_command_once_and_stdin_is_the_terminal(tmp_path: Path) -> None:
    script = "import sys; assert all(s.isatty() for s in (sys.stdin, sys.stdout)); print('got', input());"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        command = [*EXEC, "--", sys.executable, "-c", script + SIGNALS_SEEN]
        os.execve(sys.executable, command, environment())
    screen = b""
    os.write(terminal, b"hello\n")
    while b"ready" not in screen:
        screen += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    while b"]" not in screen:
        screen += os.read(terminal, 1024)
    try:
        while chunk := os.read(terminal, 1024):
            screen += chunk
    except OSError:
        pass  # Linux answers EIO once the other end is closed
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert b"got hello" in screen
    assert b"['SIGINT']" in screen
    assert b"Traceback" not in screen
    assert names(tmp_path) == [".json", ".jsonl", "_summary.txt"]


def sampler_of(process: subprocess.Popen[str]) -> int | None:
    """The process id of the sampler below a running `exec`: the one that writes to the recording."""
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            grandparent = int(
                (Path("/proc") / str(parent) / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except (OSError, ValueError, IndexError):
            continue
        if b"gpuproof.worker.commands.sample" in words and process.pid in (parent, grandparent):
            return int(folder.name)
    return None


WAIT_FOR_GO = "touch started; while [ ! -e go ]; do sleep 0.1; done"


def started(tmp_path: Path, process: subprocess.Popen[str]) -> int:
    """The process id of the sampler, once the command runs and a sample of it is recorded.

    A monitor that is killed earlier, between its first sample and its command, has no command to leave.
    """
    wait_for((tmp_path / "started").exists)
    wait_for(lambda: samples_of(tmp_path))
    sampler: int = wait_for(lambda: sampler_of(process))
    return sampler


def test_a_sampler_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        "--",
        "sh",
        "-c",
        f"{WAIT_FOR_GO}; echo '{{}}' >&$GPUPROOF_MARKS_FD; echo still; exit 4",
    )
    sampler = started(tmp_path, process)
    os.kill(sampler, signal.SIGKILL)
    (tmp_path / "go").touch()
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (stdout, process.returncode) == ("still\n", 4)
    assert "the sampler was stopped by SIGKILL before the command finished" in stderr
    assert names(tmp_path) == [".json", ".jsonl", "_summary.txt"]
    data = recording(tmp_path)
    assert data.end is None
    assert len(data.time_s) >= 1
    assert any("has no end" in note for note in data.notes)


def test_a_monitor_that_is_killed_leaves_the_command_running_and_no_sampler(tmp_path: Path) -> None:
    process = start(tmp_path, "--", "sh", "-c", f"{WAIT_FOR_GO}; echo done > finished")
    sampler = started(tmp_path, process)
    node = int(Path(f"/proc/{sampler}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(node, signal.SIGKILL)
    process.wait(timeout=PATIENCE_S)
    wait_for(lambda: not Path(f"/proc/{sampler}").exists())
    data = recording(tmp_path)
    assert data.end is not None
    assert data.end.reason == "parent gone"
    (tmp_path / "go").touch()
    wait_for((tmp_path / "finished").exists)
    process.communicate()


@pytest.mark.promise("S4.13", "F4.3")
def test_marks_from_python_and_from_a_shell_are_in_every_row(tmp_path: Path) -> None:
    work = f'''{SAMPLED}
from gpuproof.monitor.marks import publish
import subprocess
assert publish(phase="train", epoch=1)
wait_for_samples(1, after_mark=1)
by_hand = """echo '{{"batch": 7}}' > "$GPUPROOF_MARKS_PIPE"; echo nonsense > "$GPUPROOF_MARKS_PIPE" """
subprocess.run(["sh", "-c", by_hand], check=True)
wait_for_samples(1, after_mark=2)
publish(phase="eval")
wait_for_samples(1, after_mark=3)
'''
    done = run(tmp_path, "--interval", "0.1", "--model", "lenet5", "--", sys.executable, "-c", work)
    assert done.returncode == 0
    (path,) = (tmp_path / "results").glob("*.json")
    metadata = [row["training_metadata"] for row in json.loads(path.read_text())]
    assert all(entry["model"] == "lenet5" for entry in metadata)
    seen = list(dict.fromkeys((m["phase"], m["epoch"], m["batch"]) for m in metadata))
    assert seen[-3:] == [("train", 1, None), ("train", 1, 7), ("eval", 1, 7)]
    data = recording(tmp_path)
    assert [span.name for span in data.phases()] == ["train", "eval"]
    assert data.end is not None
    assert data.end.bad_marks == 1


def test_a_posix_shell_can_use_the_inherited_descriptor(tmp_path: Path) -> None:
    done = run(tmp_path, "--", "sh", "-c", """echo '{"phase": "train"}' >&$GPUPROOF_MARKS_FD""")
    assert done.returncode == 0
    assert [mark.metadata for mark in recording(tmp_path).marks] == [{"phase": "train"}]


def test_without_a_gpu_the_host_is_recorded(tmp_path: Path) -> None:
    several = f"{SAMPLED}wait_for_samples(4)"  # a processor's share is known from the second on
    done = run(tmp_path, "--", sys.executable, "-c", several, fake="0")
    assert done.returncode == 0
    (path,) = (tmp_path / "results").glob("*.json")
    rows = json.loads(path.read_text())
    assert {row["gpu_index"] for row in rows} == {row["memory_used"] for row in rows} == {None}
    assert rows[0]["host"]["mem_used_bytes"] > 0
    assert rows[-1]["host"]["cpu_percent"] >= 0


def test_odd_names_and_arguments_come_through_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s a "path" $HOME ü'
    folder.mkdir()
    (folder / "random.py").write_text("raise SystemExit('a file of the user was imported')")
    odd = ["a b", "it's", '"q"', "$HOME", "*", "--", "--interval", "ünï", ""]
    script = "import json, sys; print(json.dumps(sys.argv[1:]))"
    done = run(
        folder,
        "--output-dir",
        "out put",
        "--config-name",
        "né w/../x",
        "--",
        sys.executable,
        "-P",
        "-c",
        script,
        *odd,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == odd
    files = sorted(path.name for path in (folder / "out put").iterdir())
    assert len(files) == 3
    assert all(name.startswith("gpu_stats_n_w_.._x_20") for name in files)


@pytest.mark.promise("S4.7", "F4.5")
@pytest.mark.parametrize("end", [["--"], []], ids=["with --", "without"])
def test_files_that_a_shell_put_in_the_place_of_a_pattern_are_never_run(
    tmp_path: Path, end: list[str]
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "gpu_stats_run1_1.json").write_text("#!/bin/sh\ntouch ran\n")
    (folder / "gpu_stats_run1_1.json").chmod(0o755)
    assert run(tmp_path, "--config-name", "run1", "--", "sleep", "0.3").returncode == 0
    matched = sorted(str(path.relative_to(tmp_path)) for path in folder.glob("gpu_stats_run1_*.json"))
    assert len(matched) == 2
    options = ["--config-name", "run2", "--compare-with", *matched]
    done = run(tmp_path, *options, *end, "sh", "-c", "sleep 0.3; exit 7")
    assert done.returncode == 7, done.stderr
    assert "matches 2 recordings; using the newest, results/gpu_stats_run1_2" in done.stderr
    assert re.search(r"^  A  gpu_stats_run1_2", done.stderr, re.M)
    assert not (tmp_path / "ran").exists()
    refused = run(tmp_path, "--compare-with", matched[0], "absent.json", "--", "touch", "ran")
    assert refused.returncode == 2
    assert "absent.json: no such file" in refused.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.promise("S4.7")
def test_comparing_takes_the_newest_match_and_refuses_none_before_the_command_runs(tmp_path: Path) -> None:
    work = ["--", "sh", "-c", "sleep 0.2; echo ran >> ran"]
    refused = run(tmp_path, "--compare-with", "results/*run1*.json", *work)
    assert refused.returncode == 2
    assert "no recording matches" in refused.stderr
    assert not (tmp_path / "ran").exists()
    for config in ("run1", "run1"):
        assert run(tmp_path, "--config-name", config, *work).returncode == 0
    newest = max((tmp_path / "results").glob("*run1*.jsonl"))
    done = run(
        tmp_path,
        "--config-name",
        "run2",
        "--compare-with",
        "results/gpu_stats_run1_*.json",
        "--generate-graphs",
        *work,
    )
    assert done.returncode == 0
    assert f"A  {newest.name}" in done.stderr
    run2 = [path.name.partition("_20")[2][13:] for path in (tmp_path / "results").glob("*run2*")]
    assert sorted(run2) == [".json", ".jsonl", "_comparison.txt", "_plot.png", "_summary.txt"]


def test_no_command_line_is_kept_unless_asked(tmp_path: Path) -> None:
    run(tmp_path, "--", "true", "--password=tell-nobody")
    assert "tell-nobody" not in "".join(p.read_text() for p in (tmp_path / "results").iterdir())
    other = tmp_path / "other"
    other.mkdir()
    run(other, "--keep-command", "--", "true", "--password=tell-nobody")
    assert recording(other).recording.command == ("true", "--password=tell-nobody")


@pytest.mark.parametrize("devices", ["7", "0,x"])
def test_devices_that_are_not_there_are_said_before_the_command_runs(tmp_path: Path, devices: str) -> None:
    done = run(tmp_path, "--devices", devices, "--", "touch", "ran")
    assert done.returncode == 2
    assert done.stderr.startswith(f"gpuproof: --devices {devices}: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "results").exists()
    recorded = [*EXEC[:-1], "record", "--out=r.jsonl", f"--devices={devices}", "--duration=1"]
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment(), "capture_output": True}
    assert subprocess.run(recorded, timeout=PATIENCE_S, **options).returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_an_output_directory_that_cannot_be_is_said_before_the_command_runs(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    done = run(tmp_path, "--", "touch", "ran")
    assert done.returncode == 2
    assert "results" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_record_writes_one_file_and_nothing_else(tmp_path: Path) -> None:
    command = [*EXEC[:-1], "record", "--interval", "0.1", "--out", "r.jsonl"]
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True}
    done = subprocess.run([*command, "--duration", "0.5"], timeout=PATIENCE_S, **options)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "gpuproof: readings are in r.jsonl\n"
    data = load_recording(tmp_path / "r.jsonl")
    assert 1 <= len(data.time_s) <= 6  # a machine that stalls leaves readings out
    assert data.end is not None
    assert data.end.reason == "duration"
    for start_of_command in (command, [*our_command("gpuproof.worker.commands.record"), "--out=r.jsonl"]):
        again = subprocess.run([*start_of_command, "--", "touch", "ran"], timeout=PATIENCE_S, **options)
        assert again.returncode == 2
        assert again.stderr == "gpuproof: r.jsonl: the file exists. Name another file, or remove it.\n"
    both = subprocess.run([*command, "--duration", "1", "--", "true"], timeout=PATIENCE_S, **options)
    assert both.returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]


@pytest.mark.promise("S4.6", "S4.12", "S4.13", "R4.5")
def test_options_alone_train_the_built_in_model_and_its_exit_code_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "X.config").write_text("CONFIG_BATCH_SIZE=256\nCONFIG_NUM_EPOCHS=1\n")
    ours = (
        "--model",
        "lenet5",
        "--config-name",
        "X",
        "--config-dir",
        ".",
        "--generate-graphs",
        "--interval=0.1",
    )
    words = ("--optimizer", "adamw", "--pruning-method", "magnitude", "--target-sparsity", "0.7")
    done = run(tmp_path, *ours, "--", *words, "--device", "cpu", "--distributed.threads_per_rank=1")
    assert done.returncode in MEASURED, done.stderr
    assert "lenet5 training on digits" in done.stdout
    assert "43,029 of 61,470 weights" in " ".join(done.stdout.split())
    names = {re.sub(r"_\d{8}_\d{6}", "_T", path.name) for path in (tmp_path / "results").iterdir()}
    assert names == {
        "X",
        *(f"gpu_stats_X_T{end}" for end in (".json", ".jsonl", "_summary.txt", "_plot.png")),
    }
    (readings,) = (tmp_path / "results").glob("gpu_stats_*.json")
    published = [row["training_metadata"] for row in json.loads(readings.read_text())]
    assert (published[-1]["epoch"], published[-1]["batch"]) == (
        1,
        6,
    )  # the 1,438 samples that are not held out, in batches of 256
    phases = {row["phase"] for row in published}
    told = phases - {None}
    assert told  # how many, and which of them a sample falls into, is the machine's affair
    assert told <= set(get_args(PhaseName))
    refused = run(tmp_path, *ours[:4], "--", "--optimizer", "adamw", "--pruning-method", "state")
    assert refused.returncode == 2
    assert (
        "command line: training.pruning.method: state pruning reads the moments of AdamWPrune"
        in refused.stderr
    )


def test_defaults_of_the_built_in_training_are_refused_for_a_command(tmp_path: Path) -> None:
    done = run(tmp_path, "--config-dir", ".", "--", "true")
    assert done.returncode == 2
    assert "--config-dir: is for the built-in training, but you gave your own command" in done.stderr
