"""Journals: what was flushed is read back, whatever happened to the process or the disk."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuproof.base.errors import RecordError
from gpuproof.records.codec import MOST, from_json
from gpuproof.records.journal import RESERVE_BYTES, Journal, decode, encode, has_writer, read_journal
from gpuproof.records.readings import Sample
from gpuproof.records.run import Environment, Failure, Steps
from gpuproof.records.what_ran import Connections, CountedConnection
from gpuproof.records.work.data import DataUsed
from records_by_hand import environment, setup

seconds = st.floats(min_value=0.0, max_value=MOST)


@given(durations=st.lists(seconds), first=st.integers(0, 10**9))
def test_a_record_survives_the_round_trip(durations: list[float], first: int) -> None:
    record = Steps(rank=0, phase="measure", first_step=first, durations_s=tuple(durations))
    assert decode(encode(record)) == record


def test_every_whole_record_is_read_at_whatever_byte_the_file_ends(tmp_path: Path) -> None:
    records = [Steps(rank=0, phase="warmup", first_step=i, durations_s=(0.5, i / 7)) for i in range(4)]
    path = tmp_path / "rank-0.jsonl"
    journal = Journal(path)
    for record in records:
        journal.append(record)
    journal.close()
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        content = read_journal(path)
        assert list(content.records) == records[: sum(end <= cut for end in ends)]
        assert (content.torn is None) == (cut == 0 or cut in ends)


def test_a_broken_line_in_the_middle_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_text(
        encode(Steps(rank=0, phase="warmup", first_step=0, durations_s=())) + "\n{\n{}\n", encoding="utf-8"
    )
    with pytest.raises(RecordError, match=r"rank-0\.jsonl:2"):
        read_journal(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first_step": None}, "first_step: expected a whole number, found NoneType"),
        ({"first_step": True}, "first_step: expected a whole number, found bool"),
        ({"durations_s": [0.1, "x"]}, "durations_s: expected numbers"),
        ({"durations_s": [0.1, 1e300]}, "durations_s: expected numbers up to 1e"),
        ({"durations_s": [0.1, -1.0]}, "durations_s: -1 is less than 0, the minimum"),
        ({"rank": -1}, "rank: -1 is less than 0"),
        ({"data_wait_s": -1e300}, "data_wait_s: expected a number up to 1e"),
        ({"first_step": 10**400}, "first_step: expected a whole number up to 1e"),
        ({"phase": "lunch"}, "'lunch' is not one of"),
        ({"v": 99}, "schema version 99"),
    ],
)
def test_ill_typed_records_are_refused_by_name(change: dict[str, object], message: str) -> None:
    line = json.loads(encode(Steps(rank=0, phase="measure", first_step=0, durations_s=(0.1,))))
    with pytest.raises(RecordError, match=message):
        decode(json.dumps({**line, **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": -1}, "setup: rank: -1 is less than 0"),
        ({"items_per_sample": 0}, "items_per_sample: 0 is less than 1"),
        ({"items_per_step": -1}, "items_per_step: -1 is less than 0"),
        ({"flops_per_step": -1.0}, "flops_per_step: -1 is less than 0"),
        ({"data_used": {"num_samples": -1}}, "data_used: num_samples: -1 is less than 0"),
    ],
)
def test_what_a_number_can_be_is_declared_at_its_field(change: dict[str, Any], message: str) -> None:
    used = DataUsed(
        loading="device", split=None, source=None, num_samples=1, sha256=None, sha256_of=None, batches_ahead=0
    )
    line = json.loads(encode(setup(data_used=used)))
    data_used = {"data_used": {**line["data_used"], **change.get("data_used", {})}}
    with pytest.raises(RecordError, match=message):
        decode(json.dumps({**line, **change, **data_used}), place="setup")


def test_a_host_has_a_name_that_is_part_of_a_subject() -> None:
    line = json.loads(encode(environment()))
    for host in ("", "a/b", "a>b"):
        with pytest.raises(RecordError, match=f"host: '{host}' does not match"):
            decode(json.dumps({**line, "host": host}))


def test_a_number_next_to_nothing_is_none() -> None:
    line = json.loads(encode(setup()))
    assert decode(json.dumps({**line, "flops_per_step": 1e-300})).flops_per_step == 0.0


def test_unknown_keys_and_kinds_of_a_newer_minor_version_are_passed_over() -> None:
    line = json.loads(encode(Steps(rank=0, phase="measure", first_step=0, durations_s=(0.1,))))
    assert decode(json.dumps({**line, "new_key": 1})) == decode(json.dumps(line))
    assert decode('{"kind": "future", "v": 1}') is None


def test_nan_is_never_recorded() -> None:
    with pytest.raises(RecordError, match="nan cannot be recorded"):
        encode(Steps(rank=0, phase="measure", first_step=0, durations_s=(float("nan"),)))


def test_last_words_free_the_reserve_first(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rank-0.jsonl")
    journal.reserve_room()
    assert nameless_files(tmp_path) == [RESERVE_BYTES]
    failure = Failure(
        rank=0, host="h", phase="measure", cause="disk_full", message="no space left", unix_s=0.0
    )
    journal.append_last_words(failure)
    assert nameless_files(tmp_path) == []
    journal.close()
    assert read_journal(tmp_path / "rank-0.jsonl").records == (failure,)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.jsonl"]


def nameless_files(folder: Path) -> list[int]:
    """Return the sizes of the files under `folder` that this process holds open and that have no name."""
    found = []
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):
            target = os.readlink(descriptor)
            if target.startswith(str(folder)) and target.endswith("(deleted)"):
                found.append(os.fstat(int(descriptor.name)).st_size)
    return found


def test_a_journal_has_one_writer_and_others_can_tell(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    journal = Journal(path)
    assert has_writer(path)
    with pytest.raises(RecordError, match="another process is writing to it"):
        Journal(path)
    journal.close()
    assert not has_writer(path)


def test_the_place_of_a_misfit_leads_through_all_that_holds_it() -> None:
    devices = {"0": {"values": {"power_w": "much"}}}
    data = {"monotonic_s": 1, "unix_s": 2, "lane": "fast", "host": {}, "devices": devices}
    with pytest.raises(RecordError) as raised:
        from_json(Sample, data, place="monitor.jsonl:3")
    assert raised.value.place == "monitor.jsonl:3: devices.0: values.power_w"
    assert raised.value.cause == "expected a number, found str"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"torch": ["2.11"]}, r"torch is \['2.11'\], which is not text"),
        ({"accelerators": {"drivers": {"nvidia": {"version": 580}}}}, "nvidia is 580, which is not text"),
        ({"accelerators": {"drivers": {"nvidia": None}}}, "environment: cannot be read"),
    ],
)
def test_a_version_that_is_no_text_is_refused(facts: dict[str, object], reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        decode(encode(Environment(host="a", facts=facts)))


def test_connections_cannot_have_sent_less_than_nothing() -> None:
    sent = CountedConnection(local="10.0.0.1", peer="10.0.0.2", segments_sent=5, segments_sent_again=-1)
    with pytest.raises(RecordError, match="segments_sent_again: -1 is less than 0"):
        decode(encode(Connections(rank=0, connections=(sent,), missing=None)))


def test_a_counter_of_a_driver_that_is_text_is_named() -> None:
    facts = {"accelerators": {"devices": [{"uuid": "GPU-0", "state": {"remapped_rows_failed": 0}}]}}
    sound = encode(Environment(host="a", facts=facts))
    assert decode(sound) == Environment(host="a", facts=facts)
    with pytest.raises(RecordError, match="remapped_rows_failed is '7', which is not a number"):
        decode(sound.replace('"remapped_rows_failed":0', '"remapped_rows_failed":"7"'))
    with pytest.raises(RecordError, match=r"environment: cannot be read"):
        decode(sound.replace('{"uuid"', '[{"uuid"').replace("0}}]", "0}}]]"))
