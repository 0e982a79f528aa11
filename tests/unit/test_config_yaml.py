"""YAML in: what each scalar means, the line of each key, and everything that a config may not hold."""

from __future__ import annotations

import pytest

from gpuproof.config.settings import ConfigError, ConfigSetting
from gpuproof.config.yaml import MAX_DEPTH, read_settings, read_value, resolve


def read(text: str) -> dict[str, tuple[object, int | None]]:
    return {".".join(s.path): (s.value, s.line) for s in read_settings(text, source="run.yaml")}


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_settings(text, source="run.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-4", 0.0001),
        ("1.", 1.0),
        (".5", 0.5),
        ("-3", -3),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("True", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("2026-01-01", "2026-01-01"),
        ("0b11", "0b11"),
        ("9" * 101, 1e101),
        ("0x" + "f" * 65, "0x" + "f" * 65),
        ("-.inf", float("-inf")),
    ],
)
def test_plain_scalars_mean_what_yaml_1_2_says(written: str, value: object) -> None:
    found = resolve(written)
    assert found == value
    assert type(found) is type(value)


def test_keys_carry_their_lines_and_quotes_make_text() -> None:
    text = (
        "# a comment\ndata:\n  batch_size: 32\n\n  name: '32'\nmodel: {options: {a: [1, {b: null}], c: []}}\n"
    )
    assert read(text) == {
        "data": ({}, 2),
        "data.batch_size": (32, 3),
        "data.name": ("32", 5),
        "model": ({}, 6),
        "model.options": ({}, 6),
        "model.options.a": ([1, {"b": None}], 6),
        "model.options.c": ([], 6),
    }


def test_text_over_several_lines_is_read() -> None:
    assert read("run:\n  notes: |\n    one\n    two\n")["run.notes"] == ("one\ntwo\n", 2)
    assert read("%YAML 1.2\n---\nkind: training\n...\n") == {"kind": ("training", 3)}


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "run.yaml:1: ", "the config is empty"),
        ("# only a comment\n", "run.yaml:1: ", "the config is empty"),
        ("---\n...\n", "run.yaml:1: ", "the config is empty"),
        ("just words\n", "run.yaml:1: ", "a mapping of sections"),
        ("- a\n- b\n", "run.yaml:1: ", "a mapping of sections"),
        ("data:\n\tname: x\n", "run.yaml:2: ", "a tab in the indentation"),
        ("data: [1\n", "run.yaml:1: ", "not YAML"),
        ("kind: @x\n", "run.yaml:1: ", "not YAML"),
        ("kind: training\nkind: inference\n", "run.yaml:2: kind: ", "already given on line 1"),
        ("data:\n  name: &x a\n", "run.yaml:2: data.name: ", "anchors, aliases and merge keys are rejected"),
        ("a: {b: 1}\nc: *x\n", "run.yaml:2: c: ", "anchors, aliases and merge keys are rejected"),
        ("data:\n  <<: {a: 1}\n", "run.yaml:2: data.<<: ", "anchors, aliases and merge keys are rejected"),
        ("&x data: 1\n", "run.yaml:1: data: ", "must not have an anchor or tag"),
        ("a: !!python/object:os.system x\n", "run.yaml:1: a: ", "tags (`!…`) are rejected"),
        ("!!map {a: 1}\n", "run.yaml:1: ", "tags (`!…`) are rejected"),
        ("a: 1\n---\nb: 2\n", "run.yaml:2: ", "a second document"),
        ("%YAML 1.1\n---\na: no\n", "run.yaml:2: ", "a version other than 1.2"),
        ("a:\n  1: x\n", "run.yaml:2: a.1: ", "a key must be text"),
        ("a:\n  ? [1, {b: 2}]\n  : x\n", "run.yaml:2: a.?: ", "a key must be text"),
        ('a:\n  "\\0": x\n', "run.yaml:2: a. : ", "a key must be printable text"),
        ('a:\n  "": x\n', "run.yaml:2: a.: ", "a key must be printable text"),
        ('a: ["x\\e[31m"]\n', "run.yaml:1: a.0: ", "control characters"),
        ('a:\n  "b\\U00ffffff"\n', "run.yaml:2: ", "an escape that is not a valid character"),
        ('a: "\\ud800"\n', "run.yaml:1: a: ", "control characters"),
    ],
)
def test_what_a_config_may_not_hold_is_refused_at_its_line(text: str, place: str, words: str) -> None:
    message = refusal(text)
    assert message.startswith(place)
    assert words in message
    assert "\n" not in message


def test_several_mistakes_are_told_at_once_in_the_order_of_the_lines() -> None:
    message = refusal("a: &x 1\na: 2\n<<: 3\nb: [\n")
    lines = [line.strip() for line in message.splitlines()]
    assert lines[0] == "4 mistakes in the config:"
    assert [line.split(": ")[0] for line in lines[1:]] == [f"run.yaml:{n}" for n in (1, 2, 3, 4)]


def test_more_than_ten_mistakes_are_counted() -> None:
    lines = refusal("".join(f"a{n}: *x\n" for n in range(13))).splitlines()
    assert lines[0] == "13 mistakes in the config:"
    assert lines[-1].strip() == "and 3 more."
    assert len(lines) == 12


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}")])
def test_deep_nesting_is_refused_without_recursion(opening: str, closing: str) -> None:
    for depth in (MAX_DEPTH + 1, 1000, 2**18):
        assert "nested deeper than 20 levels" in refusal("a: " + opening * depth + closing * depth)
    assert read("a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))


def test_deep_block_nesting_is_refused_with_its_line() -> None:
    text = "".join(" " * n + "a:\n" for n in range(1000))
    assert refusal(text).startswith("run.yaml:22: a.a.a.a: nested deeper")


def test_a_value_alone_is_read_at_its_key() -> None:
    assert read_value("{a: 1e-3}", path=("model", "options"), source="command line") == [
        ConfigSetting(path=("model", "options"), value={}, source="command line"),
        ConfigSetting(path=("model", "options", "a"), value=0.001, written="1e-3", source="command line"),
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("# nothing", "no value is given"),
        ("[1", "not YAML"),
        ("*x", "anchors"),
        ("{a: 1, a: 2}", "this key was already given before"),
    ],
)
def test_a_wrong_value_names_its_key_and_no_line(value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_value(value, path=("data",), source="command line")
    assert str(caught.value).startswith("command line: data")
    assert words in str(caught.value)
