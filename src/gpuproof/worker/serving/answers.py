"""An endpoint's response to one request, read as a stream: chunk times, and the token count.

In: the events of a stream from `/completions` or `/chat/completions`, as they arrive. Out: the times of one
request. Chunks and tokens are counted separately, since a chunk may carry several tokens: the token count is
the number that the server reports in `usage`, or None if that is missing. Three kinds of chunks are
distinguished: those without text (the role, an empty delta), those with reasoning (`delta.reasoning`,
`delta.reasoning_content`), and those with content.
https://platform.openai.com/docs/api-reference/chat-streaming
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeVar

MOST_SAID = 200
"""Maximum number of characters to quote from a server's message."""
MOST_COUNTED = 2**53
"""A server that counts more tokens than this does not count tokens."""
NO_ANSWER = ("abort", "error")
"""Finish reasons of responses that the server gave up: vLLM and SGLang use the first, vLLM and OpenRouter the
second."""
REASONING = ("reasoning", "reasoning_content")
"""Fields of a delta that contain a model's reasoning before its answer: vLLM since 0.12 uses the first, and
most other servers the second."""


class ProtocolError(Exception):
    """The other side does not follow the protocol."""


@dataclass(slots=True)
class RequestTimes:
    """One request; times are in seconds from the window's start."""

    scheduled_s: float
    issued_s: float
    begun_s: float
    """When a connection was available and the request was sent."""
    first_token_s: float | None = None
    """When the first chunk with text arrived, whether reasoning or content."""
    first_content_s: float | None = None
    done_s: float | None = None
    """When the last chunk with text arrived; None if the request failed."""
    tokens_asked: int = 0
    prompt_tokens_asked: int = 0
    tokens: int | None = None
    """Number of output tokens as counted by the server, capped at the number requested; None if the server
    does not count."""
    prompt_tokens: int | None = None
    """Number of prompt tokens as counted by the server; None if the server does not count."""
    chunks: array[float] = field(default_factory=lambda: array("d"))
    """Arrival time of each chunk with text."""
    answer: list[str] | None = None
    """Content of the response, if the next turn has to repeat it."""
    has_surplus: bool = False
    """Whether the server counted or sent more tokens than were requested."""
    is_resent: bool = False
    """Whether the server had silently closed the keep-alive connection, so that the request was sent again on
    a new one."""
    failure: str | None = None
    is_finished: bool = False
    """Whether the server marked the end of the stream; a truncated stream is not an answer."""
    is_closed_by_done: bool = False
    """Whether the end was marked by [DONE], after which nothing follows."""

    def add_event(self, event: object, now_s: float) -> None:
        """Add an event from the stream; the final events contain only the finish reason or the usage.

        Raises:
            ProtocolError: the event does not follow the protocol, or reports an error.
        """
        choices = read_field(event, "choices", list) or []
        kinds = [_kind(choice) for choice in choices]
        if any(kinds):
            self._add_chunk(now_s, is_content="content" in kinds)
        if self.answer is not None:
            self.answer.extend(map(_content, choices))
        for choice in choices:
            reason = read_field(choice, "finish_reason", str)
            if reason in NO_ANSWER and _error(event) is None:
                raise ProtocolError(f"the server ended its answer with finish_reason {reason}")
            self.is_finished |= bool(reason)
        usage = read_field(event, "usage", dict)
        if usage is not None:
            self._add_usage(usage)
        if (error := _error(event)) is not None:
            raise reported_error(error)

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
            if count is not None and not 0 <= count < MOST_COUNTED:
                raise ProtocolError(f"the server counts {str(count)[:MOST_SAID]} tokens")
        if made is not None:
            self.has_surplus |= made > self.tokens_asked
            self.tokens = min(made, self.tokens_asked)
        if read is not None:
            self.prompt_tokens = read

    def fail(self, reason: str) -> None:
        """Record why the request failed; its partial results are excluded from all metrics."""
        self.failure, self.done_s = reason, None

    @property
    def gaps_s(self) -> list[float]:
        """Return the times between chunks; none for a failed request."""
        if self.done_s is None:
            return []
        return [later - earlier for earlier, later in pairwise(self.chunks)]


T = TypeVar("T")


def read_field(event: object, name: str, kind: type[T]) -> T | None:
    """Read a field of an event; None if it is missing or null.

    Raises:
        ProtocolError: the event is not an object, or the field has a wrong type.
    """
    if not isinstance(event, dict):
        raise ProtocolError(f"an event in the stream is not an object: {str(event)[:MOST_SAID]}")
    value = event.get(name)
    if value is None or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise ProtocolError(f"{name} of an event is not of type {kind.__name__}: {str(value)[:MOST_SAID]}")


def _content(choice: object) -> str:
    delta = read_field(choice, "delta", dict)
    text = read_field(choice, "text", str) if delta is None else read_field(delta, "content", str)
    return text or ""


def _kind(choice: object) -> Literal["content", "reasoning"] | None:
    """Return the kind of text that a choice contains; None if it has no text."""
    if _content(choice):
        return "content"
    delta = read_field(choice, "delta", dict)
    if delta is not None and any(read_field(delta, name, str) for name in REASONING):
        return "reasoning"
    return None


def reported_error(message: str) -> ProtocolError:
    """Return the failure of a request whose stream contains an error."""
    return ProtocolError(f"the server reports an error in its stream: {message[:MOST_SAID]}")


def _error(event: object) -> str | None:
    """Return the server's description of its own error: an object's message, or a string."""
    if not isinstance(event, dict):
        return None
    error = event if event.get("object") == "error" else event.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return str(message or error) if error else None
