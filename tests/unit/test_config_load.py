"""Loading: file and command line become one checked config, whose every value knows where it came from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode
from gpuproof.config.load import as_yaml, load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.base import Facts
from gpuproof.config.settings import ConfigError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *overrides: str) -> RunConfig:
    Path("run.yaml").write_text(text, encoding="utf-8")
    return load_config("run.yaml", overrides).config


def refusal(text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    assert caught.value.exit_code is ExitCode.USAGE
    return str(caught.value)


def test_the_command_line_goes_over_the_file_and_the_file_over_the_defaults() -> None:
    Path("run.yaml").write_text("data:\n  batch_size: 32\n  num_workers: 2\n", encoding="utf-8")
    loaded = load_config("run.yaml", ["--data.batch_size=64"])
    assert loaded.config.data.batch_size == 64
    assert loaded.config.data.num_workers == 2
    assert loaded.config.training.seed == 1337
    assert loaded.source == "run.yaml"
    assert loaded.origins["data.batch_size"] == "command line"
    assert loaded.origins["data.num_workers"] == "run.yaml:3"
    assert loaded.origins["training.seed"] == "default"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--training.learning_rate=1e-4"], lambda c: c.training.learning_rate == 0.0001),
        (["--training.learning_rate", "1e-4"], lambda c: c.training.learning_rate == 0.0001),
        (["--distributed.devices=[0,1]", "--distributed.nproc=2"], lambda c: c.distributed.devices == (0, 1)),
        (["--training.grad_clip_norm=null"], lambda c: c.training.grad_clip_norm is None),
        (
            ["--data={name: digits, batch_size: 3}"],
            lambda c: (c.data.name, c.data.batch_size) == ("digits", 3),
        ),
        (["--run.run_id=007"], lambda c: c.run.run_id == "007"),
        (["--run.run_id='1e5'"], lambda c: c.run.run_id == "1e5"),
        (["--run.run_id", "a", "--run.run_id", "null"], lambda c: c.run.run_id is None),
        (["--run.commit_hash=12345e7"], lambda c: c.run.commit_hash == "12345e7"),
        (["--run.notes=a: b # c"], lambda c: c.run.notes == "a: b # c"),
        (["--run.notes=no"], lambda c: c.run.notes == "no"),
        (["--data.name=cifar100", "--data.path=d"], lambda c: c.data.name == "CIFAR100"),
        (["--training.seed=1", "--training.seed=2"], lambda c: c.training.seed == 2),
        (["--distributed.timeout_s=60"], lambda c: c.distributed.timeout_s == 60.0),
    ],
)
@pytest.mark.promise("F1.13")
def test_override_words_are_yaml_except_where_text_is_wanted(words: list[str], found: object) -> None:
    assert callable(found)
    assert found(load("kind: training\n", *words))


def test_plain_words_in_a_file_stay_text_where_text_is_wanted() -> None:
    run = load("run:\n  run_id: 007\n  experiment_name: true\n  commit_hash: 12345e99999\n  notes: ~\n").run
    assert (run.run_id, run.experiment_name, run.commit_hash, run.notes) == (
        "007",
        "true",
        "12345e99999",
        None,
    )


def test_options_are_laid_over_each_other_key_by_key() -> None:
    text = "model:\n  options:\n    a: 1\n    b:\n      c: 2\n"
    assert load(text, "--model.options.b.d=3").model.options == {"a": 1, "b": {"c": 2, "d": 3}}
    assert load(text, "--model.options.a.x=3").model.options == {"a": {"x": 3}, "b": {"c": 2}}
    assert load(text, "--model.options={b: 4}").model.options == {"b": 4}
    assert load(text, "--model.options={}", "--model.options.e=5").model.options == {"e": 5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "benchmark:\n  warmup_step: 3\n",
            "run.yaml:2: benchmark.warmup_step: unknown key; did you mean warmup_steps? The keys of "
            "benchmark are enabled, warmup_steps, measure_by, measure_steps, min_seconds, measure_seconds, "
            "power_cap_limit_s, log_step_times, sync_cuda, of_device, evaluate_after, count_flops, "
            "target_precision, min_steps, own_compute.",
        ),
        (
            "batch_size: 3\n",
            "run.yaml:1: batch_size: unknown key; did you mean data.batch_size? The keys of the config",
        ),
        ("launches: 3\n", "launches: unknown key; did you mean run.repeats? The keys of the config"),
        ("run:\n  n: 3\n", "run.n: unknown key; did you mean run.repeats? The keys of run are"),
        ("run:\n  steps: 3\n", "run.steps: unknown key; did you mean benchmark.measure_steps? The"),
        ("run:\n  warmup_steps: 3\n", "unknown key; did you mean benchmark.warmup_steps? The keys of run"),
        ("data:\n  epochs: 3\n", "data.epochs: unknown key; did you mean training.epochs? The keys of data"),
        ("batch-size: 3\n", "batch-size: unknown key; did you mean data.batch_size? The keys of the config"),
        ("seed: 3\n", "seed: unknown key; did you mean training.seed? The keys of the config"),
        (
            "data:\n  seq_len: 128\n",
            "data.seq_len: unknown key; did you mean model.options.seq_len (of decoder, gpt2, moe_decoder, "
            "transformer)? The keys of data",
        ),
        ("max_seq_len: 128\n", "max_seq_len: unknown key; did you mean model.options.seq_len (of decoder"),
        ("model:\n  num_layer: 2\n", "model.num_layer: unknown key; did you mean model.options.num_layers"),
        (
            "zzz: {a: 1, b: 2}\n",
            "run.yaml:1: zzz: unknown key. The keys of the config are kind, data, model, ",
        ),
        (
            "data:\n",
            "run.yaml:1: data: expected a section, found null. Set one of its keys (name, path, ",
        ),
        ("data: 3\n", "run.yaml:1: data: expected a section, found 3. "),
        (
            "data:\n  batch_size: '32'\n",
            'run.yaml:2: data.batch_size: expected a whole number from 1 to 1,048,576, found the text "32". '
            "Remove the quotes: quoted digits are text.",
        ),
        (
            "data:\n  batch_size: 1:30\n",
            'run.yaml:2: data.batch_size: expected a whole number from 1 to 1,048,576, found the text "1:30"'
            ". The key means: Samples per rank in one micro-batch.",
        ),
        ("data:\n  batch_size: true\n", "from 1 to 1,048,576, found true. "),
        ("data:\n  batch_size: 32.0\n", "from 1 to 1,048,576, found 32.0. "),
        ("data:\n  batch_size: 0\n", "from 1 to 1,048,576, found 0. "),
        ("data:\n  batch_size: " + "9" * 90 + "\n", "found " + "9" * 40 + "… (90 characters). "),
        (
            "data:\n  batch_size: " + "9" * 5000 + "\n",
            "cannot be infinite or NaN. Write a finite number.",
        ),
        ("data:\n  batch_size: null\n", "from 1 to 1,048,576, found null. "),
        ("data:\n  batch_size: [1]\n", "from 1 to 1,048,576, found [1]. "),
        (
            "data:\n  batch_size: {a: 1}\n",
            "run.yaml:2: data.batch_size: data.batch_size has a single value and no keys below it. "
            "The key means: ",
        ),
        (
            "data:\n  pin_memory: no\n",
            'run.yaml:2: data.pin_memory: expected true or false, found the text "no". '
            "YAML 1.2 accepts only true and false, without quotes.",
        ),
        ("training:\n  precision: 16\n", "training.precision: expected one of fp64, fp32, tf32, amp, bf16, "),
        (
            "training:\n  learning_rate: .nan\n",
            "run.yaml:2: training.learning_rate: cannot be infinite or NaN",
        ),
        ("training:\n  learning_rate: 1e999\n", "cannot be infinite or NaN"),
        ("training:\n  momentum: 1.0\n", "expected a number from 0 to below 1, found 1.0. "),
        ("training:\n  compile: true\n", "run.yaml:2: training.compile: expected a section, found true. "),
        ("model:\n  options: 3\n", "run.yaml:2: model.options: expected a mapping of options, found 3. "),
        (
            "model:\n  options: {a: [{b: .inf}]}\n",
            "run.yaml:2: model.options.a: cannot be infinite or NaN",
        ),
        (
            "run:\n  run_id: ../x\n",
            "run.yaml:2: run.run_id: expected a name of letters, digits, `.`, `_` and `-` that starts with "
            'a letter or digit, or null, found the text "../x". ',
        ),
        ("run:\n  experiment_name: a/b\n", "expected a name of letters"),
        ("run:\n  save_dir: ''\n", "expected text of 1 to 4096 printable characters, found the text"),
        ("run:\n  repeats: 1001\n", "expected a whole number from 1 to 1,000, found 1001. "),
        (
            "distributed:\n  devices: [0, -1]\n",
            "expected a list, each item a whole number from 0 to 1,023, or null, found [0, -1]",
        ),
    ],
)
@pytest.mark.promise("S1.14", "F1.1")
def test_each_mistake_says_place_cause_and_next_step(text: str, message: str) -> None:
    found = refusal(text)
    assert message in found
    assert found.startswith("run.yaml:")
    assert "\n" not in found


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("epochs=3", 'command line: "epochs" is not a key of the config. Write --section.key=value'),
        ("--=3", 'command line: "--" is not a key of the config'),
        ("--data..name=3", 'command line: "--data..name" is not a key of the config'),
        (
            "--data.batch_size",
            "command line: data.batch_size: no value is given. Write --data.batch_size=VALUE.",
        ),
        (
            "--data.batch_size=",
            "command line: data.batch_size: no value is given. Write --data.batch_size=VALUE.",
        ),
        ("--run.notes=\x1b[1m", "command line: run.notes: the value has control characters"),
        ("--data.path=\udcff", "command line: data.path: the value has control characters"),
        ("--data.batch_size=[", "command line: data.batch_size: not YAML"),
        ("--data.batch_sise=3", "command line: data.batch_sise: unknown key; did you mean batch_size?"),
        ("--batch_size=3", "command line: batch_size: unknown key; did you mean data.batch_size?"),
        ("--data.batch_size=-1", "command line: data.batch_size: expected a whole number from 1"),
        ("--data.batch_size.x=1", "command line: data.batch_size.x: data.batch_size has a single value"),
        ("--data=3", "command line: data: expected a section, found 3"),
    ],
)
def test_each_mistake_on_the_command_line_is_named(word: str, message: str) -> None:
    assert refusal("kind: training\n", word).startswith(message)


def test_text_that_the_locale_made_none_of_is_utf8() -> None:
    under_ascii = "--run.notes=" + "é".encode().decode("ascii", "surrogateescape")
    assert load_config("quick", [under_ascii]).config.run.notes == "é"


def test_all_wrong_words_of_a_command_line_are_told_at_once() -> None:
    message = refusal("kind: training\n", "x=1", "--data.batch_size=[", "--data.path=d")
    assert message.startswith("2 mistakes in the config:\n")


def test_mistakes_of_every_sort_are_told_together_file_first() -> None:
    lines = refusal("data:\n  batch_size: x\nmodell: {}\n", "--training.epoch=3").splitlines()
    assert [line.split(": ")[0].strip() for line in lines[1:]] == ["run.yaml:2", "run.yaml:3", "command line"]


def test_a_declared_rank_must_agree_with_the_launch() -> None:
    text = "distributed:\n  world_size: 8\n  local_rank: 1\n  node_rank: 0\n"
    Path("run.yaml").write_text(text, encoding="utf-8")
    torchrun = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "NODE_RANK": "3", "GROUP_RANK": "0"}
    assert load_config("run.yaml", facts=Facts(environment=torchrun)).config.distributed.world_size == 8
    with pytest.raises(
        ConfigError, match=r"run\.yaml:2: .*declared as 8, but the environment says WORLD_SIZE=4"
    ):
        load_config("run.yaml", facts=Facts(environment={**torchrun, "WORLD_SIZE": "4"}))
    alone = refusal(text)
    assert (
        "run.yaml:2: distributed.world_size: world_size is declared as 8, but distributed.nproc starts 1"
        in alone
    )
    assert (
        "run.yaml:3: distributed.local_rank: local_rank is declared as 1, but the only rank here is rank 0"
        in alone
    )


def test_a_declared_rank_that_agrees_with_this_command_is_taken() -> None:
    agreed = load("distributed: {nproc: 2, world_size: 2, node_rank: 0}\n").distributed
    assert agreed.world_size == agreed.nproc == 2
    assert "ranks here each have their own" in refusal("distributed: {nproc: 2, local_rank: 0}\n")
    assert "this host is the only one" in refusal("distributed: {node_rank: 2}\n")


def test_a_fact_of_which_the_launch_says_nothing_is_believed() -> None:
    Path("run.yaml").write_text("distributed: {node_rank: 2}\n", encoding="utf-8")
    by_hand = {"RANK": "0", "WORLD_SIZE": "1"}
    assert load_config("run.yaml", facts=Facts(environment=by_hand)).config.distributed.node_rank == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"data:\n  name: \xff\n", "run.yaml:2: byte 0xff is not UTF-8 text. Save the file as UTF-8."),
        ("data: {}".encode("utf-16"), "run.yaml:1: byte 0xff is not UTF-8 text"),
        (b"kind: a\x00b\n", "run.yaml:1: the line contains the unprintable character U+0000"),
        (b"kind: a\r\nx: \x1b[1m\r\n", "run.yaml:2: the line contains the unprintable character U+001B"),
        (b"", "run.yaml:1: the config is empty"),
        (b" " * (2**16 + 1), "run.yaml: larger than 64 KiB, so it is not a config"),
        (b"#" * (10 * 2**20), "run.yaml: larger than 64 KiB, so it is not a config"),
    ],
)
def test_files_that_are_no_text_are_refused(content: bytes, message: str) -> None:
    Path("run.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config("run.yaml")
    assert str(caught.value).startswith(message)


def test_a_byte_order_mark_and_foreign_line_ends_are_taken() -> None:
    Path("run.yaml").write_bytes(b"\xef\xbb\xbfdata:\r\n  batch_size: 3\r\n  num_workers: 1\r")
    origins = load_config("run.yaml").origins
    assert (origins["data.batch_size"], origins["data.num_workers"]) == ("run.yaml:2", "run.yaml:3")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "absent.yaml",
            "absent.yaml: there is no such file or recipe. Give a YAML file's path, or a recipe. ",
        ),
        (
            "quik",
            "quik: there is no such file or recipe. Did you mean the recipe quick? The recipes are ",
        ),
        ("", '"": '),
        (".", ".: this is a folder, not a config file. Specify the file in it."),
        ("x" * 300, "x" * 300 + ": cannot be read (File name too long)"),
        ("a\x00b", "a b: cannot be read (embedded null byte)"),
        ("file/run.yaml", "file/run.yaml: cannot be read (Not a directory)"),
    ],
)
def test_what_cannot_be_read_is_refused(name: str, message: str) -> None:
    Path("file").touch()
    with pytest.raises(ConfigError) as caught:
        load_config(name)
    assert str(caught.value).startswith(message)


def test_a_recipe_goes_by_its_name_unless_a_file_has_it() -> None:
    os.mkdir("quick")
    assert load_config("quick").source == "recipe quick"
    os.rmdir("quick")
    Path("quick").write_text("data:\n  batch_size: 7\n", encoding="utf-8")
    loaded = load_config("quick")
    assert (loaded.source, loaded.config.data.batch_size) == ("quick", 7)


def test_the_yaml_with_origins_loads_as_the_same_config() -> None:
    words = ("--run.notes=a: 'b' # c", "--model.options={1x: {'1': [1, null]}, null_: {}, 'a b': 1e-5}")
    Path("run\n.yaml").write_text("data:\n  batch_size: 7\n", encoding="utf-8")
    loaded = load_config("run\n.yaml", words)
    shown = as_yaml(loaded, with_origins=True)
    assert "  batch_size: 7  # run .yaml:2\n" in shown
    assert '    "a b": 1e-05  # command line\n' in shown
    assert load(shown) == loaded.config


def test_what_a_run_keeps_is_plain_json_with_every_origin() -> None:
    Path("run.yaml").write_text("distributed:\n  devices: [1, 0]\n  nproc: 2\n", encoding="utf-8")
    loaded = load_config("run.yaml", ["--model.options.hidden=[8]"])
    assert loaded.config.model_dump(mode="json")["distributed"]["devices"] == [1, 0]
    assert loaded.origins["distributed.devices"] == "run.yaml:2"
    assert loaded.origins["model.options.hidden"] == "command line"
    assert "model.options" not in loaded.origins
    assert loaded.source == "run.yaml"
