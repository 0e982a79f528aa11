"""A suite of another package brings a section of its own: its keys, their errors, its place in the schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from gpuproof.base import registry
from gpuproof.base.errors import UsageError
from gpuproof.config.keys import json_schema
from gpuproof.config.load import as_yaml, load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.settings import ConfigError
from gpuproof.suites.sweep.plan import points_of_matrix

MODULE = """
from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Part:
    size: int = 1
    name: str = "p"


@dataclass(frozen=True, kw_only=True)
class ToyOptions:
    rounds: int = 2
    label: str = "none"
    mode: Literal["fast", "slow"] = "fast"
    part: Part = field(default_factory=Part)

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds is {self.rounds}, but must be 1 or more")


TOY = SimpleNamespace(options=ToyOptions, summary="a toy")
BARE = SimpleNamespace(options=None)
ODD = SimpleNamespace(options=3)
"""
ENTRIES = """[gpuproof.suites]
toy = toy_suite_for_tests:TOY
bare = toy_suite_for_tests:BARE
odd = toy_suite_for_tests:ODD
absent = no_such_module:X
load = toy_suite_for_tests:BARE
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    site, info = tmp_path / "site", tmp_path / "site" / "toy_suite-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "toy_suite_for_tests.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-suite\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    registry.forget()
    yield
    registry.forget()


def load(text: str, *words: str) -> RunConfig:
    Path("x.yaml").write_text(text)
    return load_config("x.yaml", words).config


def refusal(text: str, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *words)
    return str(caught.value)


DEFAULTS = {"rounds": 2, "label": "none", "mode": "fast", "part": {"size": 1, "name": "p"}}


def test_a_section_is_resolved_with_the_defaults_and_the_command_line_over_it() -> None:
    assert load("suite: toy\n").suite_options == {"toy": DEFAULTS}
    text = "suite: toy\ntoy:\n  rounds: 3\n  label: 007\n  part: {size: 4}\n"
    wanted = {**DEFAULTS, "rounds": 5, "label": "007", "part": {"size": 4, "name": "q"}}
    assert load(text, "--toy.rounds=5", "--toy.part.name=q").suite_options == {"toy": wanted}
    assert load("suite: bare\n").suite_options == {}


def test_run_json_is_read_back_when_the_package_is_gone() -> None:
    kept = load("suite: toy\n", "--toy.rounds=3").model_dump_json()
    Path("site/toy_suite-1.0.dist-info/entry_points.txt").unlink()
    registry.forget()
    read = RunConfig.model_validate_json(kept)
    assert (read.suite, read.suite_options["toy"]["rounds"]) == ("toy", 3)


def test_a_matrix_sweeps_its_keys() -> None:
    config = load("suite: toy\ntoy: {label: x}\nmatrix:\n  toy.rounds: [1, 4]\n")
    options = [point.config.suite_options["toy"] for point in points_of_matrix(config).values()]
    assert [(found["rounds"], found["label"]) for found in options] == [(1, "x"), (4, "x")]
    assert "x.yaml:3: matrix.toy.rounds" not in as_yaml(load_config("x.yaml"))
    wrong = refusal("suite: toy\nmatrix:\n  toy.rounds: [1, 0]\n")
    assert wrong.startswith("x.yaml:3: toy.rounds: rounds is 0, but must be 1 or more (point toy.rounds=0)")


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (
            "suite: toy\ntoy:\n  round: 3\n",
            (),
            "x.yaml:3: toy.round: unknown key; did you mean rounds? The keys of toy are rounds, label, mode",
        ),
        ("suite: toy\n", ("--toy.round=3",), "command line: toy.round: unknown key; did you mean rounds?"),
        (
            "suite: toy\ntoy:\n  rounds: many\n",
            (),
            "x.yaml:3: toy.rounds: expected a whole number",
        ),
        (
            "suite: toy\n",
            ("--toy.rounds=0",),
            "command line: toy.rounds: rounds is 0, but must be 1 or more. ",
        ),
        ("suite: toy\ntoy: {mode: middling}\n", (), "x.yaml:2: toy.mode: expected 'fast' or"),
        (
            "suite: toy\ntoy: {part: {size: x}}\n",
            (),
            "x.yaml:2: toy.part.size: expected a",
        ),
        (
            "suite: toy\ntoy: 3\n",
            (),
            "x.yaml:2: toy: expected a section, found 3. Set one of its keys",
        ),
        (
            "toy: {rounds: 3}\n",
            (),
            "x.yaml:1: toy: it is for the suite toy, but suite is null. Set",
        ),
        (
            "suite: tyo\n",
            (),
            "x.yaml:1: suite: no suite is called 'tyo'. The suites are ab, absent, bare",
        ),
        ("suite: bare\nbare: {a: 1}\n", (), "x.yaml:2: bare.a: unknown key"),
        ("suite_options: {toy: {}}\n", (), "x.yaml:1: suite_options: unknown key"),
        (
            "kid: 3\n",
            (),
            "x.yaml:1: kid: unknown key; did you mean kind? The keys of the config are",
        ),
    ],
)
def test_what_is_wrong_is_told_by_line(text: str, words: tuple[str, ...], message: str) -> None:
    assert refusal(text, *words).startswith(message)


def test_a_suite_that_cannot_be_loaded_says_so() -> None:
    for name, said in (("odd", "are not a dataclass"), ("absent", "cannot be loaded")):
        with pytest.raises(UsageError, match=said):
            load(f"suite: {name}\n")
    with pytest.raises(ValidationError, match=r"toy\.round: unknown option. Options of toy: rounds, label"):
        RunConfig.model_validate({"suite": "toy", "toy": {"round": 3}})


def test_the_section_is_shown_and_loads_again() -> None:
    load("suite: toy\ntoy: {rounds: 3}\n")
    loaded = load_config("x.yaml")
    assert '  rounds: 3  # x.yaml:2\n  label: "none"  # default\n' in as_yaml(loaded, with_origins=True)
    Path("y.yaml").write_text(as_yaml(loaded))
    assert load_config("y.yaml").config == loaded.config


def test_the_schema_has_the_section_of_every_suite() -> None:
    schema = json_schema()
    assert schema["properties"]["toy"]["properties"]["rounds"] == {
        "default": 2,
        "title": "Rounds",
        "type": "integer",
    }
    assert schema["properties"]["toy"]["additionalProperties"] is False
    assert schema["properties"]["toy"]["properties"]["part"]["$ref"] == "#/$defs/toy.Part"
    assert "size" in schema["$defs"]["toy.Part"]["properties"]
    assert "cannot be loaded" in schema["properties"]["absent"]["description"]
    assert "suite_options" not in schema["properties"]
    assert schema["properties"]["load"]["$ref"] == "#/$defs/LoadConfig"
    assert load("suite: load\nload: {num_epochs: 1}\nkind: load\n").suite_options == {}


def test_what_may_be_one_of_several_is_refused_once_and_without_names_of_classes() -> None:
    with pytest.raises(ConfigError) as refused:
        load_config("validate", ["--validate.gemm_precisions=fp32"])
    (mistake,) = refused.value.mistakes
    assert mistake.place == "command line: validate.gemm_precisions"
    assert mistake.cause == "expected a list, or expected 'auto'"
