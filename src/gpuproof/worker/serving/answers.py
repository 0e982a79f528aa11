"""One answer of an endpoint, read from its stream: when its chunks came, how many tokens the server counts.

In: the events of a stream of `/completions` or `/chat/completions`, as they come. Out: the times of one
request. Chunks and tokens are counted separately, for a chunk may carry several tokens: tokens are what the
server's `usage` says, and None where it says nothing. Three kinds of chunks are told apart: those without
text (the role, an empty delta), reasoning (`delta.reasoning`, `delta.reasoning_content`), and content.
https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeVar

MOST_SAID = 200
"""Characters of a server's own words that are repeated."""
REASONING = ("reasoning", "reasoning_content")
"""Fields of a delta with what a model thinks before it answers: of vLLM since 0.12, and of most others."""


class ProtocolError(Exception):
    """The other side does not speak the protocol as it should."""


@dataclass(slots=True)
class RequestTimes:
    """One request, in seconds from the window's begin."""

    scheduled_s: float
    issued_s: float
    begun_s: float
    """When it had a connection and was sent."""
    first_token_s: float | None = None
    """Of any kind, reasoning or content."""
    first_content_s: float | None = None
    done_s: float | None = None
    """When the last chunk with text came; None where it failed."""
    tokens_asked: int = 0
    prompt_tokens_asked: int = 0
    tokens: int | None = None
    """As the server counts them, at most those asked for; None where it sent no count."""
    prompt_tokens: int | None = None
    """As the server counts them; None where it sent no count."""
    chunks: array[float] = field(default_factory=lambda: array("d"))
    """When each chunk with text came."""
    answer: list[str] | None = None
    """Its content, where a next turn repeats it."""
    has_surplus: bool = False
    """Whether the server counts more tokens, or sent more of them, than were asked for."""
    is_resent: bool = False
    """Whether the server had closed the kept connection without a word, so that it was sent on a new one."""
    failure: str | None = None
    is_finished: bool = False
    """Whether the server said that this is the end: a torn stream is no answer."""
    is_closed_by_done: bool = False
    """Whether that was [DONE], behind which nothing comes."""

    def add_event(self, event: object, now_s: float) -> None:
        """Add an event of the stream; the last ones carry the reason of the end or the usage only.

        Raises:
            ProtocolError: it is none of the protocol's, or reports an error.
        """
        choices = read_field(event, "choices", list) or []
        kinds = [_kind(choice) for choice in choices]
        if any(kinds):
            self._add_chunk(now_s, is_content="content" in kinds)
        if self.answer is not None:
            self.answer.extend(map(_content, choices))
        for choice in choices:
            self.is_finished |= bool(read_field(choice, "finish_reason", str))
        usage = read_field(event, "usage", dict)
        if usage is not None:
            self._add_usage(usage)
        if not choices and (error := _error(event)) is not None:
            raise ProtocolError(f"the server reports an error in its stream: {error[:MOST_SAID]}")

    def _add_chunk(self, now_s: float, *, is_content: bool) -> None:
        if self.first_token_s is None:
            self.first_token_s = now_s
        if is_content and self.first_content_s is None:
            self.first_content_s = now_s
        self.done_s = now_s
        self.chunks.append(now_s)
        self.has_surplus |= len(self.chunks) > self.tokens_asked

    def _add_usage(self, usage: object) -> None:
        made, read = (read_field(usage, f"{part}_tokens", int) for part in ("completion", "prompt"))
        for count in (made, read):
            if count is not None and count < 0:
                raise ProtocolError(f"the server counts {count} tokens")
        if made is not None:
            self.has_surplus |= made > self.tokens_asked
            self.tokens = min(made, self.tokens_asked)
        if read is not None:
            self.prompt_tokens = read

    def fail(self, reason: str) -> None:
        """Note why it failed; what came of it is part of no figure."""
        self.failure, self.done_s = reason, None

    @property
    def gaps_s(self) -> list[float]:
        """Return the times between chunks; none of a request that failed."""
        if self.done_s is None:
            return []
        return [later - earlier for earlier, later in pairwise(self.chunks)]


T = TypeVar("T")


def read_field(event: object, name: str, kind: type[T]) -> T | None:
    """Read a field of an event; None where it is not there or null.

    Raises:
        ProtocolError: the event is no object, or the field of another type.
    """
    if not isinstance(event, dict):
        raise ProtocolError(f"an event of the stream is no object: {str(event)[:MOST_SAID]}")
    value = event.get(name)
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise ProtocolError(f"{name} of an event is no {kind.__name__}: {str(value)[:MOST_SAID]}")


def _content(choice: object) -> str:
    delta = read_field(choice, "delta", dict)
    text = read_field(choice, "text", str) if delta is None else read_field(delta, "content", str)
    return text or ""


def _kind(choice: object) -> Literal["content", "reasoning"] | None:
    """Say which text a choice carries; None where it has none."""
    if _content(choice):
        return "content"
    delta = read_field(choice, "delta", dict)
    if delta is not None and any(read_field(delta, name, str) for name in REASONING):
        return "reasoning"
    return None


def _error(event: object) -> str | None:
    """Return what a server says of its own error: an object with a message, or a text."""
    error = event.get("error") if isinstance(event, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return None if error is None else str(message or error)
