"""Marks: from Python and by hand, whole or not at all, never in the way of the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuproof.monitor.marks import FD_VARIABLE, MAX_LINE_BYTES, PIPE_VARIABLE, MarkReader, publish
from gpuproof.monitor.watch import MarksPipe


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[MarksPipe]:
    opened = MarksPipe()
    for name, value in opened.environment.items():
        monkeypatch.setenv(name, value)
    yield opened
    opened.close()


def taken(pipe: MarksPipe) -> list[dict[str, object]]:
    return [metadata for _, metadata in MarkReader(pipe.descriptor).take(now_s=1e18)]


def test_a_published_mark_arrives_with_the_time_of_its_publication(pipe: MarksPipe) -> None:
    before_s = time.monotonic()
    assert publish(phase="train", epoch=3)
    after_s = time.monotonic()
    ((published_s, metadata),) = MarkReader(pipe.descriptor).take(now_s=after_s + 1.0)
    assert before_s <= published_s <= after_s
    assert metadata == {"phase": "train", "epoch": 3}


def test_without_a_monitor_publishing_does_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(PIPE_VARIABLE, raising=False)
    monkeypatch.delenv(FD_VARIABLE, raising=False)
    assert publish(epoch=1) is False
    monkeypatch.setenv(PIPE_VARIABLE, str(tmp_path / "gone"))
    assert publish(epoch=1) is False
    monkeypatch.delenv(PIPE_VARIABLE)
    monkeypatch.setenv(FD_VARIABLE, "999")
    assert publish(epoch=1) is False


def test_a_descriptor_that_became_a_file_of_the_work_is_not_written_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(PIPE_VARIABLE, raising=False)
    with (tmp_path / "weights").open("w") as file:
        monkeypatch.setenv(FD_VARIABLE, str(file.fileno()))
        assert publish(epoch=1) is False
    assert (tmp_path / "weights").read_text() == ""


def test_a_full_pipe_drops_marks_and_never_holds_up_the_work(pipe: MarksPipe) -> None:
    sent = 0
    while publish(batch=sent, filler="x" * 1000):
        sent += 1
    assert sent >= 15  # 64 KiB in lines of about 1 KiB, on a system with pages of 4 KiB
    assert [mark["batch"] for mark in taken(pipe)] == list(range(sent))
    assert publish(batch=-1)


def test_a_mark_too_long_to_be_whole_is_not_sent(pipe: MarksPipe) -> None:
    assert publish(note="x" * MAX_LINE_BYTES) is False
    assert taken(pipe) == []


def test_marks_of_several_writers_never_mix(pipe: MarksPipe) -> None:
    def write(writer: int) -> None:
        for i in range(50):
            assert publish(writer=writer, i=i, filler="y" * 200)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader = MarkReader(pipe.descriptor)
    marks = [metadata for _, metadata in reader.take(now_s=1e18)]
    assert reader.bad_lines == 0
    for writer in range(4):
        assert [mark["i"] for mark in marks if mark["writer"] == writer] == list(range(50))


def test_bad_lines_are_counted_and_the_good_ones_kept(pipe: MarksPipe) -> None:
    lines = [
        "not json",
        "[1, 2]",
        '{"epoch": NaN}',
        '{"epoch": 4}',
        "",
        '"text"',
        '{"a":' * 500,
        '{"epoch": 5}',
    ]
    os.write(pipe.descriptor, ("\n".join(lines) + "\n").encode() + b"\xff\xfe\n")
    reader = MarkReader(pipe.descriptor)
    assert [metadata for _, metadata in reader.take(now_s=7.0)] == [{"epoch": 4}, {"epoch": 5}]
    assert reader.bad_lines == 6


def test_a_line_that_never_ends_is_given_up(pipe: MarksPipe) -> None:
    os.write(pipe.descriptor, b"x" * (MAX_LINE_BYTES + 1))
    reader = MarkReader(pipe.descriptor)
    assert list(reader.take(now_s=7.0)) == []
    assert reader.bad_lines == 1


def test_a_torn_line_waits_for_its_rest(pipe: MarksPipe) -> None:
    reader = MarkReader(pipe.descriptor)
    os.write(pipe.descriptor, b'{"epo')
    assert list(reader.take(now_s=7.0)) == []
    os.write(pipe.descriptor, b'ch": 9}\n')
    assert list(reader.take(now_s=8.0)) == [(8.0, {"epoch": 9})]


@pytest.mark.parametrize("claimed", [1e9, -5.0, "soon", None, True])
def test_a_time_that_cannot_be_is_replaced_by_now(pipe: MarksPipe, claimed: object) -> None:
    os.write(pipe.descriptor, json.dumps({"epoch": 1, "monotonic_s": claimed}).encode() + b"\n")
    assert list(MarkReader(pipe.descriptor).take(now_s=100.0)) == [(100.0, {"epoch": 1})]


BY_DESCRIPTOR = """echo '{"phase": "a"}' >&$GPUPROOF_MARKS_FD"""
BY_NAME = """echo '{"phase": "a"}' > "$GPUPROOF_MARKS_PIPE" """


@pytest.mark.parametrize(
    ("shell", "script"), [("bash", BY_DESCRIPTOR), ("bash", BY_NAME), ("sh", BY_NAME)]
)  # sh by descriptor: in the integration tests, where the number has one digit as dash demands
def test_a_shell_can_write_marks(pipe: MarksPipe, shell: str, script: str) -> None:
    done = subprocess.run([shell, "-c", script], pass_fds=[pipe.descriptor], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert taken(pipe) == [{"phase": "a"}]


def test_the_module_alone_is_enough_to_publish(pipe: MarksPipe, tmp_path: Path) -> None:
    source = Path(sys.modules["gpuproof.monitor.marks"].__file__ or "")
    (tmp_path / "marks.py").write_text(source.read_text())
    script = "import marks; assert marks.publish(epoch=1)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script],
        cwd=tmp_path,
        env={**pipe.environment, "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert taken(pipe) == [{"epoch": 1}]
