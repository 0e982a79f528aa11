"""Frames come out as they went in, however the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuproof.base.errors import RecordError
from gpuproof.records.frames import MAX_HEADER_BYTES, FrameDecoder, encode_frame


@given(
    frames=st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=50)), max_size=5),
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=10),
)
def test_any_cut_of_the_stream_gives_the_same_frames(
    frames: list[tuple[str, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(encode_frame({"say": word}, payload) for word, payload in frames)
    decoder, found, position, turn = FrameDecoder(), [], 0, 0
    while position < len(stream):
        end = position + cuts[turn % len(cuts)]
        found += [(frame.header["say"], frame.payload) for frame in decoder.feed(stream[position:end])]
        position, turn = end, turn + 1
    assert found == frames


@pytest.mark.parametrize(
    "stream",
    [b"hello\n", b"[1]\n", b'{"size": -1}\n', b'{"size": "7"}\n', b'{"size": true}\n', b'{"size": 1e9}\n'],
)
def test_what_is_no_frame_is_refused(stream: bytes) -> None:
    with pytest.raises(RecordError, match="not a frame"):
        list(FrameDecoder().feed(stream))


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(RecordError, match="does not end"):
        list(FrameDecoder().feed(b"x" * (MAX_HEADER_BYTES + 1)))
