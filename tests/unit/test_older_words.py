"""Command lines of lambdactl's load test: each is taken, or answered with the line that does it here."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.cli.main import cli
from gpuproof.cli.older import TAKEN
from gpuproof.config.inventory import load_inventory


def answer_to(*words: str) -> str:
    """Return the line that an answer says to write, once it is seen to be one that gpuproof takes."""
    refused = CliRunner().invoke(cli, list(words))
    assert isinstance(refused.exception, UsageError), refused.output
    assert refused.exception.exit_code is ExitCode.USAGE
    (line,) = re.findall(r"`(.*)`", str(refused.exception))
    return str(line)


def is_taken(line: str) -> bool:
    """Say whether gpuproof has such a command with such options."""
    name, *words = shlex.split(line)
    assert name == "gpuproof"
    return CliRunner().invoke(cli, [*words, "--help"]).exit_code == 0


@pytest.mark.promise("S0.27", "R0.1")
@pytest.mark.parametrize("theirs", TAKEN, ids=" ".join)
def test_what_is_taken_is_the_command_of_ours(theirs: tuple[str, ...]) -> None:
    takes_a_file = theirs[-1] == "--stats"
    found = CliRunner().invoke(cli, [*theirs, *(["FILE"] if takes_a_file else []), "--help"])
    assert found.exit_code == 0
    command = " ".join(word for word in TAKEN[theirs] if not word.startswith("-"))
    assert f"Usage: cli {command} " in found.stdout
    assert f"`gpuproof {' '.join(TAKEN[theirs])}` here" in found.stderr


@pytest.mark.promise("S0.27", "R0.2")
def test_the_line_of_the_older_tool_runs_as_it_stands(tmp_path: Path) -> None:
    words = shlex.split(
        "test load --ssh-key k.pem --username ubuntu --quick --num-epochs 3 --num-batches 200 "
        "--num-workers 0 --metrics-sample-rate 5.0 --max-workers 5 --output results.json"
    )
    absent = tmp_path / "cluster.json"
    result = CliRunner().invoke(cli, [*words, "--deployment-file", str(absent)])
    assert isinstance(result.exception, UsageError)  # all options were taken; of the hosts there is no file
    assert str(absent) in str(result.exception)


@pytest.mark.promise("R0.1")
def test_a_deployment_is_answered_with_the_older_defaults_of_type_and_count() -> None:
    asked = ["--region", "us-east-1", "--ssh-key", "my key"]
    line = answer_to("deploy", "cluster", *asked)
    assert line == (
        "gpuproof cloud lambda deploy --type gpu_1x_a100 --count 2 --region us-east-1 --ssh-key 'my key'"
    )
    assert is_taken(line)
    own = answer_to("deploy", "cluster", "--type=gpu_1x_h100", "--count", "1", *asked)
    assert own.startswith("gpuproof cloud lambda deploy --type=gpu_1x_h100 --count 1 --region")


@pytest.mark.promise("R0.1", "R0.4")
def test_the_key_is_stored_by_the_line_that_configure_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    subprocess.run(["sh", "-c", answer_to("configure")], input="secret", text=True, check=True)
    stored = tmp_path / ".config" / "gpuproof" / "lambda-api-key"
    assert (stored.read_text(), stored.stat().st_mode & 0o777) == ("secret", 0o600)


@pytest.mark.promise("R0.2")
@pytest.mark.parametrize(
    ("instances", "names"),
    [
        ("10.0.0.5,node-1.example", ["10.0.0.5", "node-1.example"]),
        ("0920582c7ff0,13f2", ["0920582c7ff0", "13f2"]),
    ],
)
def test_instances_are_answered_with_the_file_that_names_them(
    instances: str, names: list[str], tmp_path: Path
) -> None:
    writing, _, running = answer_to("test", "load", "--instances", instances).partition(" && ")
    subprocess.run(["sh", "-c", writing], cwd=tmp_path, check=True)
    hosts = load_inventory(str(tmp_path / "cluster.json")).hosts
    assert [host.instance_id or host.address for host in hosts] == names
    assert is_taken(running)


@pytest.mark.promise("R0.2")
@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--monitoring-interval=60.0", "gpuproof load --metrics-sample-rate 60.0"),
        ("--no-monitoring", "gpuproof run load --monitoring.enabled=false"),
    ],
)
def test_options_of_the_monitor_are_answered(word: str, line: str) -> None:
    assert answer_to("load", word) == line
    assert is_taken(line)


def test_the_answers_are_not_in_the_help() -> None:
    shown = CliRunner().invoke(cli, ["load", "--help"]).stdout
    assert "--instances" not in shown
    assert "--deployment-file" in shown


def test_a_word_that_only_begins_like_one_is_no_command() -> None:
    refused = CliRunner().invoke(cli, ["test", "loads"], standalone_mode=False)
    assert isinstance(refused.exception, click.UsageError)


@pytest.mark.promise("R0.5")
def test_older_results_have_a_time() -> None:
    recorded = (
        Path(__file__).parents[1] / "replay" / "runs" / "load" / "exports" / "gpu_loadtest_results.json"
    )
    content = json.loads(recorded.read_text(encoding="utf-8"))
    assert content["test_summary"]["timestamp"] == content["system_info"]["timestamp"]
