"""Detect and remove anything that looks like a secret, in text for files, records and the screen.

Input: a text, and secrets known by value, e.g. the key of an endpoint. Output: the text, with each secret
replaced by `redacted`. A known secret is also found if the text was cut off in the middle of it.

>>> redacted("NCCL_AUTH=abc http://me:pw@host/v1")
'NCCL_AUTH=redacted http://redacted@host/v1'
>>> redacted("wrong key abcdefgh-123, cut: abcdefgh-1", secrets=("abcdefgh-123",))
'wrong key redacted, cut: redacted'
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

REDACTED = "redacted"
NAMES = (
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API[_-]?KEY|ACCESS[_-]?KEY|SECRET[_-]?KEY|PRIVATE[_-]?KEY|"
    r"CREDENTIALS?|[_-]AUTH|[_-]PASS|[_-]PWD)"
)
PATTERNS = (
    re.compile(rf"(?P<kept>\b[\w.-]*{NAMES}\\?\"\s*:\s*\\?\")(?P<secret>[^\"\\]+)", re.IGNORECASE),
    re.compile(rf"(?P<kept>\b[\w.-]*{NAMES}=[\"']?)(?P<secret>[^\s\"'\\,;&]+)", re.IGNORECASE),
    re.compile(r"(?P<kept>\b[a-z][a-z0-9+.-]*://)(?P<secret>[^\s/@\"'\\]+(?=@))", re.IGNORECASE),
    re.compile(r"(?P<kept>\bBearer\s+)(?P<secret>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE),
    re.compile(
        r"(?P<kept>)(?P<secret>\b(?:AKIA[0-9A-Z]{16}|hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|"
        r"sk-[A-Za-z0-9_-]{20,})\b)"
    ),
    re.compile(
        r"(?P<kept>-----BEGIN [A-Z ]*PRIVATE KEY-----)(?P<secret>.*?)(?=-----END [A-Z ]*PRIVATE KEY-----)",
        re.DOTALL,
    ),
)
"""Patterns for values that follow revealing names, users in addresses, and keys in known formats."""
SECRET_OPTION = re.compile(rf"--?[\w.-]*{NAMES}", re.IGNORECASE)
"""An option with its value as a separate argument."""
NO_SECRET = re.compile(r"[$<{%].*|\d{1,7}|true|false|none|null|git", re.IGNORECASE)
"""Values that may remain visible after such a name: a reference, a placeholder, a token count, git's user."""
SHORTEST_CUT = 8
"""Number of leading characters of a known secret that identify a truncated one."""


def redacted(text: str, *, secrets: Iterable[str] = ()) -> str:
    """Return the text with its secrets removed."""
    return redacted_with_count(text, secrets=secrets)[0]


def redacted_with_count(text: str, *, secrets: Iterable[str] = ()) -> tuple[str, int]:
    """Return text with its secrets removed, and how many were removed."""
    total = 0
    for secret in secrets:
        text, count = _pattern(secret).subn(REDACTED, text)
        total += count
    for pattern in PATTERNS:
        text, count = pattern.subn(lambda match: f"{match['kept']}{REDACTED}", text)
        total += count
    return text, total


def redacted_words(words: Sequence[str]) -> list[str]:
    """Return the arguments of a command with their secrets removed.

    >>> redacted_words(["train", "--api-key", "abc", "--token=abc", "--lr", "3"])
    ['train', '--api-key', 'redacted', '--token=redacted', '--lr', '3']
    """
    return [
        REDACTED if _takes_as_secret(before, word) else redacted(word)
        for before, word in pairwise(("", *words))
    ]


def typed_command() -> str:
    """Return the command line of this process, ready to paste into a shell."""
    return redacted(shlex.join(["gpuproof", *sys.argv[1:]]))


def words_with_secrets(words: Sequence[str]) -> Iterator[int]:
    """Yield the index of each argument with a secret in plain text, not just a reference to one.

    >>> list(words_with_secrets(["sh", "-c", "TOKEN=$TOKEN x", "--pad_token", "<pad>", "--key-token", "abc"]))
    [6]
    """
    for index, (before, word) in enumerate(pairwise(("", *words))):
        secrets = [match["secret"] for pattern in PATTERNS for match in pattern.finditer(word)]
        if _takes_as_secret(before, word):
            secrets.append(word)
        if not all(map(NO_SECRET.fullmatch, secrets)):
            yield index


def _takes_as_secret(before: str, word: str) -> bool:
    return SECRET_OPTION.fullmatch(before) is not None and not word.startswith("-")


def _pattern(secret: str) -> re.Pattern[str]:
    """Return a pattern that matches a secret, in full or cut off after its first characters."""
    rest = ""
    for character in reversed(secret[SHORTEST_CUT:]):
        rest = f"(?:{re.escape(character)}{rest})?"
    return re.compile(re.escape(secret[:SHORTEST_CUT]) + rest)
