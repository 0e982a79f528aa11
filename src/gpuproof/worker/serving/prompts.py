"""The content of each request to an endpoint: a text with a given token count, and a token limit.

In: the recipe's lengths, prefixes and trace, and a seed. Out: for each request number, always the same text.
Texts consist of short common words. How many words make up a token depends on the server, so a few prompts
are sent before the window, and a line is fitted to the server's own counts (`Calibration`). No two prompts
start the same way, so that no prefix cache can serve them, unless prefixes are shared on purpose. A trace
uses Mooncake's format (https://github.com/kvcache-ai/Mooncake, FAST25-release/traces), with one line per
request: `{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}`. A hash
identifies a block of 512
tokens: prompts that start with the same hashes start with the same text. A file without timestamps provides
only lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, log, sqrt
from pathlib import Path
from random import Random

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.base.outside import parse_json
from gpuproof.records.work.options import MAX_TOKENS
from gpuproof.records.work.serving import NEW_TOKENS, PROMPT_TOKENS, ServingSpec

WORDS = ("red", "day", "six", "sun", "tree", "run", "cold", "word", "sea", "house")
"""Short common words that are each about one token in common vocabularies."""
POOL_WORDS = 2**16
HEAD_WORDS = 12
"""Number of unique words at the start of a prompt; the smallest blocks in prefix caches have 16 tokens."""
MIN_TRIAL_WORDS = 16
BLOCK_TOKENS = 512
MOST_BYTES = 2**30
MOST_S = 1e9
MIN_TOKENS_PER_WORD, MAX_TOKENS_PER_WORD = 0.1, 100.0
"""Outside this range, a server's counts do not depend on the words, and prompts would be of any length."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The content of one request."""

    prompt: str
    prompt_tokens: int
    new_tokens: int
    history: tuple[tuple[str, str], ...] = ()
    """Earlier messages of a conversation, alternating between user and assistant."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Tokens that a server counts for a prompt: a fixed number per word, plus the template's."""

    tokens_per_word: float = 1.0
    added_tokens: float = 0.0

    @classmethod
    def fit(cls, counts: Sequence[tuple[int, int]]) -> Calibration:
        """Fit a line to words and tokens by least squares; assume one token per word if that fails.

        >>> Calibration.fit([(10, 25), (20, 45)])
        Calibration(tokens_per_word=2.0, added_tokens=5.0)
        """
        if not counts:
            return cls()
        mean_words, mean_tokens = (sum(pair[side] for pair in counts) / len(counts) for side in (0, 1))
        square = sum((words - mean_words) ** 2 for words, _ in counts)
        product = sum((words - mean_words) * (tokens - mean_tokens) for words, tokens in counts)
        if square <= 0 or product <= 0:
            return cls()
        slope = product / square
        if not MIN_TOKENS_PER_WORD <= slope <= MAX_TOKENS_PER_WORD:
            return cls()
        return cls(slope, mean_tokens - slope * mean_words)

    def words(self, tokens: int) -> int:
        """Return the number of words for a prompt of this many tokens; at least one."""
        return max(1, round((tokens - self.added_tokens) / self.tokens_per_word))


@dataclass(slots=True)
class Prompts:
    """The prompts for all requests in a launch."""

    spec: ServingSpec
    seed: int
    calibration: Calibration = Calibration()
    _pool: list[str] = field(init=False)
    _trace: tuple[TraceRow, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Draw the words, and read the trace.

        Raises:
            EnvironmentUnfitError: the trace cannot be read.
        """
        spec = self.spec
        max_s = spec.window_s if spec.arrivals == "trace" else None
        self._trace = () if spec.trace is None else read_trace(spec.trace, max_s=max_s)
        self._pool = _random(self.seed).choices(WORDS, k=POOL_WORDS)

    def ask(self, number: int) -> Ask:
        """Return the content of request `number`."""
        draw = _random(self.seed * 1_000_003 + number)
        if self._trace:
            row = self._trace[number % len(self._trace)]
            words = self.calibration.words(row.prompt_tokens)
            prompt = self._text(draw, words, self._blocks(row.hash_ids, words))
            return Ask(prompt, row.prompt_tokens, row.new_tokens)
        lengths = self.spec.lengths
        prompt_tokens = self._length(draw, self.spec.prompt_tokens or PROMPT_TOKENS, lengths.prompt_spread)
        new_tokens = self._length(draw, self.spec.new_tokens or NEW_TOKENS, lengths.new_spread)
        words = self.calibration.words(prompt_tokens)
        return Ask(self._text(draw, words, self._prefix(draw, words)), prompt_tokens, new_tokens)

    def trial(self, number: int, num_words: int) -> Ask:
        """Return a prompt of this many words, whatever their token count, with a limit of one new token."""
        draw = _random(self.seed * 1_000_003 + number)
        return Ask(self._text(draw, num_words, []), num_words, 1)

    def trial_words(self) -> tuple[int, int]:
        """Return two prompt lengths at which to query the server's count: about the mean, and half of it."""
        tokens = [row.prompt_tokens for row in self._trace] or [self.spec.prompt_tokens or PROMPT_TOKENS]
        words = max(MIN_TRIAL_WORDS, round(sum(tokens) / len(tokens)))
        return words, words // 2

    def _length(self, draw: Random, mean: int, spread: float) -> int:
        """Draw a length: uniform over mean·(1 ± spread), or log-normal with that coefficient of variation."""
        if spread == 0:
            return mean
        if self.spec.lengths.shape == "uniform":
            return max(1, round(mean * draw.uniform(1 - spread, 1 + spread)))
        sigma = sqrt(log(1 + spread**2))
        return max(1, round(exp(draw.gauss(log(mean) - sigma**2 / 2, sigma))))

    def _prefix(self, draw: Random, words: int) -> list[str]:
        """Return the words that this prompt shares with others, which come from one of the prefixes."""
        prefix = self.spec.shared_prefix
        if prefix.share == 0:
            return []
        return self._slice(
            _random(self.seed + 1 + draw.randrange(prefix.number)), round(words * prefix.share)
        )

    def _blocks(self, hash_ids: Sequence[int], words: int) -> list[str]:
        """Return the words for a trace's blocks; the same hash always yields the same words."""
        size = self.calibration.words(BLOCK_TOKENS)
        shared = (word for name in hash_ids for word in self._slice(_random(name), size))
        return [word for word, _ in zip(shared, range(words), strict=False)]

    def _text(self, draw: Random, words: int, shared: list[str]) -> str:
        left = words - len(shared)
        own = draw.choices(WORDS, k=min(left, HEAD_WORDS))
        return " ".join([*shared, *own, *self._slice(draw, left - len(own))])

    def _slice(self, draw: Random, words: int) -> list[str]:
        """Return consecutive words of the pool from a random position; drawing word by word is too slow."""
        place = draw.randrange(POOL_WORDS)
        times = -(-(place + words) // POOL_WORDS)
        return (self._pool * times)[place : place + words] if times > 1 else self._pool[place : place + words]


def _random(seed: int) -> Random:
    return Random(seed)  # noqa: S311  # texts and lengths, no secret


def trial_numbers() -> Iterator[int]:
    """Yield request numbers for use before the window; the window does not use these numbers."""
    number = -1
    while True:
        yield number
        number -= 1


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request in a trace."""

    at_s: float | None
    """Time since the start of the trace in seconds; None if the line has no timestamp."""
    prompt_tokens: int
    new_tokens: int
    hash_ids: tuple[int, ...]


@lru_cache(maxsize=1)
def read_trace(path: str, *, max_s: float | None = None) -> tuple[TraceRow, ...]:
    """Read the requests in the first `max_s` seconds, or all requests if the file has only lengths.

    Raises:
        EnvironmentUnfitError: the file cannot be read, contains no requests, or has an invalid line; or
            timestamps are required (`max_s`) and a request has none.
    """
    try:
        if Path(path).stat().st_size > MOST_BYTES:
            raise OSError(f"it is larger than {MOST_BYTES:,} bytes")
        lines = Path(path).read_text(encoding="utf-8").splitlines()
        rows = [_row(line, number) for number, line in enumerate(lines, start=1) if line.strip()]
        if max_s is not None:
            rows = sorted((row for row in rows if _time_s(row) < max_s), key=_time_s)
        if not rows:
            raise ValueError("it holds no request" + ("" if max_s is None else f" in its first {max_s:g} s"))
    except (OSError, ValueError) as error:
        raise EnvironmentUnfitError(
            f"the trace {path} cannot be used: {error}",
            place="serving.trace",
            next_step="Provide a file of JSON lines with timestamp (ms), input_length and "
            "output_length, on the host that sends the requests",
        ) from None
    return tuple(rows)


def _time_s(row: TraceRow) -> float:
    if row.at_s is None:
        raise ValueError("a request has no timestamp, which is needed to schedule it")
    return row.at_s


def _row(line: str, number: int) -> TraceRow:
    try:
        data = parse_json(line)
        at_ms = data.get("timestamp")
        row = TraceRow(
            at_s=None if at_ms is None else at_ms / 1000,
            prompt_tokens=int(data["input_length"]),
            new_tokens=int(data["output_length"]),
            hash_ids=tuple(int(name) for name in data.get("hash_ids") or ()),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"line {number} is not a request ({type(error).__name__}: {error})") from None
    if not (1 <= row.prompt_tokens <= MAX_TOKENS and 1 <= row.new_tokens <= MAX_TOKENS):
        raise ValueError(f"line {number}: lengths must be 1 to {MAX_TOKENS:,} tokens")
    if row.at_s is not None and not 0 <= row.at_s < MOST_S:
        raise ValueError(
            f"line {number}: the timestamp must be 0 to {MOST_S * 1000:,.0f} ms since the trace's start"
        )
    return row
