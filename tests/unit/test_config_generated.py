"""Whatever stands in a file or on the command line: a config or a usage error, and never anything else."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuproof.base.errors import ExitCode
from gpuproof.config.keys import all_keys
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.settings import ConfigError, dotted

ROOT = Path(__file__).parent.parent.parent
VALID = [path.read_bytes() for path in sorted((ROOT / "configs").glob("*.yaml"))]
WORDS = ["data", "training", "compile", "model", "options", "batch_size", "name", "32", "-1", "null", "no"]
NUMBERS = ["1:30", "1e-4", ".nan", ".inf", "0x1f", "9" * 400]
LAYOUT = [
    ": ",
    ":",
    "\n",
    "\n  ",
    "\n    ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "'",
    '"',
    "|\n",
    ">",
    "?",
    "#",
    "\t",
]
ODD = [
    "&a",
    "*a",
    "<<",
    "!!str ",
    "!",
    "%YAML 1.1\n",
    "---\n",
    "...\n",
    "@",
    "`",
    "\\",
    "\\x00",
    "\\U00ffffff",
]
CHARACTERS = ["é", "\u2028", "\ufeff", "\0", "\xa0"]
FRAGMENTS = WORDS + NUMBERS + LAYOUT * 2 + ODD + CHARACTERS
careful = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def load_bytes(content: bytes, overrides: Sequence[str] = ()) -> None:
    """Load the content as a file, and check that what is wrong is told as a person should be told."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_bytes(content)
        try:
            assert isinstance(load_config(str(path), overrides).config, RunConfig)
        except ConfigError as error:
            check_message(error, path)


def check_message(error: ConfigError, path: Path) -> None:
    assert error.exit_code is ExitCode.USAGE
    lines = str(error).split("\n")
    paragraphs = lines if len(error.mistakes) == 1 else lines[1:]
    assert len(lines) == 1 or lines[0] == f"{len(error.mistakes)} mistakes in the config:"
    assert len(paragraphs) == min(len(error.mistakes), 10) + (len(error.mistakes) > 10)
    place = re.compile(rf"({re.escape(str(path))}:[0-9]+|command line): |and [0-9]+ more\.$")
    for paragraph in paragraphs:
        assert place.match(paragraph.strip()), paragraph
        assert paragraph.isprintable()
        assert paragraph.endswith(".")


@careful
@given(st.binary(max_size=200))
def test_random_bytes(content: bytes) -> None:
    load_bytes(content)


@careful
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
@example("training: {compile: {}}")
@example('a: "\\U00ffffff"')
@example("a: !<tag:yaml.org,2002:str> b")
@example("a: |9\n  b")
@example("? a\n? b")
@example("%FOO bar\n---\na: 1")
@example("%YAML 1.2\n%YAML 1.2\n---\na: 1")
@example("%TAG !a! !b\n---\na: !a!x 1")
def test_random_yaml(text: str) -> None:
    load_bytes(text.encode())


@careful
@given(
    st.sampled_from(VALID),
    st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 8), st.sampled_from(FRAGMENTS) | st.text(max_size=3)),
        max_size=4,
    ),
)
def test_valid_configs_with_pieces_cut_out_and_put_in(
    content: bytes, changes: list[tuple[float, int, str]]
) -> None:
    for where, cut, piece in changes:
        start = int(where * len(content))
        content = content[:start] + piece.encode(errors="surrogatepass") + content[start + cut :]
    load_bytes(content)


@careful
@given(
    st.lists(
        st.tuples(
            st.sampled_from([dotted(path) for path in all_keys()]) | st.text(max_size=8),
            st.sampled_from(FRAGMENTS) | st.text(max_size=8) | st.integers().map(str) | st.floats().map(str),
        ).map(lambda pair: f"--{pair[0]}={pair[1]}")
        | st.text(max_size=8),
        max_size=4,
    )
)
def test_random_override_words(words: list[str]) -> None:
    load_bytes(VALID[1], words)
