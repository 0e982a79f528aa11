"""Journals while they are written, and on a disk that fills up in the middle of a record."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpuproof.base.errors import RecordError
from gpuproof.records.journal import Journal, JournalTail, decode, encode, read_journal
from records_by_hand import failure, steps


def test_a_tail_gives_each_whole_record_once(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    tail = JournalTail(path)
    assert tail.new_records() == ()
    line = encode(steps(0, 0.1)).encode() + b"\n"
    path.write_bytes(line + line[:9])
    assert tail.new_records() == (steps(0, 0.1),)
    assert tail.new_records() == ()
    with path.open("ab") as file:
        file.write(line[9:] + b'{"kind":"of a newer version","v":1}\n')
    assert tail.new_records() == (steps(0, 0.1),)


@pytest.mark.parametrize("line", ["[]", "7", '{"v":1}'])
def test_a_line_without_a_kind_is_no_record(line: str) -> None:
    with pytest.raises(RecordError, match="a record without a kind"):
        decode(line)


def test_a_disk_that_fills_up_in_a_record_leaves_the_others_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank-0.jsonl"
    journal = Journal(path)
    journal.append(steps(0, 0.1))
    write, room = os.write, [20]

    def nearly_full(file: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[: room.pop()])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", nearly_full)
        with pytest.raises(OSError, match="No space left"):
            journal.append(steps(0, 0.2))
    journal.append_last_words(failure("disk_full"))
    journal.close()
    content = read_journal(path)
    assert content.records == (steps(0, 0.1), failure("disk_full"))
    assert content.torn is None
    assert [found.name for found in tmp_path.iterdir()] == ["rank-0.jsonl"]
