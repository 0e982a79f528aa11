"""`gpuproof load` before anything is measured: what its options set, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from documented import blocks_of
from gpuproof.base.errors import UsageError
from gpuproof.cli.load import load
from gpuproof.cli.main import cli
from gpuproof.config.load import load_config
from gpuproof.config.settings import ConfigError
from gpuproof.suites.load.plan import TESTS
from load_by_hand import write_load_run
from records_by_hand import one_rank, write_run

ROOT = Path(__file__).parents[2]


class StoppedError(Exception):
    """Raised in the place of measuring."""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config_asked(monkeypatch: pytest.MonkeyPatch, *words: str) -> dict[str, Any]:
    """Return the config of the run that the command would measure."""
    found: dict[str, Any] = {}

    def stop(directory: Any, _launcher: Any, **_options: Any) -> None:
        found.update(json.loads((directory.root / "run.json").read_text()))
        shutil.rmtree(directory.root)  # the next one may have its name: the second and the process
        raise StoppedError

    monkeypatch.setattr("gpuproof.cli.measuring.measure", stop)
    result = CliRunner().invoke(cli, ["load", *words])
    assert isinstance(result.exception, StoppedError), result.output
    config: dict[str, Any] = found["config"]
    return config


def lengths(config: dict[str, Any]) -> tuple[int, int, float]:
    asked = config["load"]
    return asked["num_epochs"], asked["num_batches"], asked["metrics_sample_rate_s"]


@pytest.mark.promise("S0.19", "S0.20", "S0.21", "S0.22", "S0.25")
def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_asked(monkeypatch)
    assert lengths(config) == (3, 200, 5.0)
    assert (config["distributed"]["device"], config["data"]["loading"]) == ("auto", "device")
    shown = {option.name: option.default for option in load.params if isinstance(option, click.Option)}
    assert (shown["num_epochs"], shown["num_batches"], shown["num_workers"]) == (3, 200, 0)
    assert shown["metrics_sample_rate"] == 5.0


@pytest.mark.promise("S0.6", "S0.19")
def test_every_option_sets_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--num-epochs", "5", "--num-batches", "500", "--device", "cpu", "--timeout", "90"]
    config = config_asked(monkeypatch, *words, "--metrics-sample-rate", "0.5")
    assert lengths(config) == (5, 500, 0.5)
    assert (config["distributed"]["device"], config["run"]["time_limit_s"]) == ("cpu", 90)


@pytest.mark.promise("S0.23", "S0.26")
def test_quick_gives_way_to_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lengths(config_asked(monkeypatch, "--quick"))[:2] == (1, 30)
    assert lengths(config_asked(monkeypatch, "--quick", "--num-batches", "200"))[:2] == (1, 200)


@pytest.mark.promise("S0.22", "F0.4")
def test_the_loader_takes_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_asked(monkeypatch, "--loader")
    assert (config["data"]["loading"], config["data"]["num_workers"]) == ("loader", 0)
    config = config_asked(monkeypatch, "--loader", "--num-workers", "4")
    assert config["data"]["num_workers"] == 4
    config = config_asked(monkeypatch, "--num-workers", "4")
    assert (config["data"]["loading"], config["data"]["num_workers"]) == ("device", 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--output", "absent/results.json"], "--output absent/results.json: there is no such folder"),
        (["--resume", "absent"], "absent: not a run directory"),
        (["--resume", "results/examples/by-hand"], "this is not a run of gpuproof load"),
        (["--resume", "load/examples/by-hand", "--num-epochs", "3"], "a resumed run uses its own config"),
        (["--resume", "load/examples/by-hand", "--quick"], "a resumed run uses its own config"),
        (["--resume", "load/examples/by-hand", "--dry-run"], "which --dry-run does not show"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_measured(words: list[str], said: str) -> None:
    write_run(Path("results"), [one_rank().records()])
    write_load_run(Path("load"), [])
    result = CliRunner().invoke(cli, ["load", *words])
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)


def test_a_dry_run_has_a_command_for_each_test_and_leaves_nothing() -> None:
    shown = CliRunner().invoke(cli, ["load", "--quick", "--dry-run", "--verbose"])
    assert shown.exit_code == 0, shown.output
    assert len(re.findall("gpuproof.worker run", shown.stdout)) == 12
    assert not list(Path().iterdir())


def test_a_launcher_of_the_users_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(cli, ["load"])
    assert "outside the launcher" in str(result.exception)
    assert not Path("results").exists()


@pytest.mark.parametrize("word", ["--num-batches=0", "--metrics-sample-rate=0"])
def test_options_out_of_bounds_are_refused(word: str) -> None:
    assert CliRunner().invoke(cli, ["load", word]).exit_code == 2


def test_a_type_of_device_that_nobody_knows_is_refused() -> None:
    refused = CliRunner().invoke(cli, ["load", "--device=tpu"])
    assert isinstance(refused.exception, ConfigError)
    assert "no installed package provides the device type 'tpu'" in str(refused.exception)


@pytest.mark.promise("S0.26")
def test_the_commands_of_its_page_are_commands() -> None:
    blocks = blocks_of("docs/guides/load.md")
    commands = [shlex.split(command.text) for block in blocks for command in block.commands]
    assert len(commands) >= 9
    # click keeps a command's help option as it was first asked for: ask as the real group does.
    parent = click.Context(cli, **cli.context_settings)
    for words in commands:
        assert words[0] == "gpuproof"
        command = cli.get_command(parent, words[1])
        assert command is not None
        command.make_context(words[1], words[2:], parent=parent)
        if words[1] == "run":
            load_config(words[2], words[3:])


def test_every_field_of_the_results_stands_on_its_page() -> None:
    page = (ROOT / "docs/guides/load.md").read_text(encoding="utf-8")
    shown = json.loads((ROOT / "tests/golden/reports/load.json").read_text(encoding="utf-8"))
    fields = {*shown["system_info"], *shown["test_summary"], *shown["results"][0]}
    short = {name.removesuffix("iteration_time_ms") for name in fields}
    assert [name for name in sorted(short) if f"`{name}" not in page] == []


@pytest.mark.promise("S0.36")
def test_what_each_test_reveals_stands_on_its_page() -> None:
    """Every kind of test, model and batch of the twelve has its row, and rows name figures that there are."""
    page = (ROOT / "docs/guides/load.md").read_text(encoding="utf-8")
    reveals = page.partition("## What each test reveals")[2].partition("## What it writes")[0]
    for test in TESTS:
        kind, model = test.name.partition("_")[0], test.name.partition("_")[2].rpartition("_bs")[0]
        assert f"| `{kind}_*` |" in reveals
        assert f"| `{model}` |" in reveals
    spans = [tuple(map(int, found)) for found in re.findall(r"^\| \w+ \((\d+) to (\d+)\) \|", reveals, re.M)]
    assert len(spans) == 3
    batches = {int(test.name.rpartition("_bs")[2]) for test in TESTS}
    assert all(any(low <= batch <= high for low, high in spans) for batch in batches)
    shown = json.loads((ROOT / "tests/golden/reports/load.json").read_text(encoding="utf-8"))
    looked_at = set(re.findall(r"`(\w+_(?:second|mb|ms))`", reveals))
    assert len(looked_at) >= 3
    assert looked_at <= set(shown["results"][0])
    for name, parameters in (("simple_cnn", "1,147,466"), ("resnet", "11,181,642")):
        assert re.search(rf"^\| `{name}` \|.* {parameters} parameters", reveals, re.M)


def test_keys_of_the_recipe_are_taken_and_come_after_what_options_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = config_asked(
        monkeypatch, "--quick", "--run.save_dir=elsewhere", "--load.num_epochs=4", "--training.precision=bf16"
    )
    assert config["run"]["save_dir"] == "elsewhere"
    assert (config["training"]["precision"], lengths(config)[:2]) == ("bf16", (4, 30))
    refused = CliRunner().invoke(cli, ["load", "--training.precison=bf16"])
    assert isinstance(refused.exception, ConfigError)
    assert "did you mean precision" in str(refused.exception)
