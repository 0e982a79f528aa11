"""What would be dropped in silence, or shown by --dry-run and refused by run: refused with file and line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuproof.base.errors import UsageError
from gpuproof.cli.main import cli
from gpuproof.config.load import load_config
from gpuproof.config.models import RunConfig
from gpuproof.config.rules.base import Facts
from gpuproof.config.settings import ConfigError

SERVING = "kind: serving\nserving: {rate_per_s: 10}\n"
REFUSED = [
    (SERVING + "matrix: {data.batch_size: [1, 2]}", 3, "matrix"),
    (SERVING + "search: {kind: batch_size}", 3, "search.kind"),
    ("data: {name: synthetic}\nserving:\n  rate_per_s: 10", 3, "serving.rate_per_s"),
    ("kind: inference\nserving: {endpoint: {max_connections: 2}}", 2, "serving.endpoint"),
    ("matrix:\n  serving.max_batch: [1, 2]", 2, "matrix.serving.max_batch"),
    ("monitoring:\n  interval_s: 1.0\n  host_interval_s: 0.1", 3, "monitoring.host_interval_s"),
    ("matrix:\n  training.learning_rate: [1, 1.0]", 2, "matrix.training.learning_rate"),
    ("model:\n  name: foo", 2, "model.name"),
    ("model:\n  name: medium\n  options:\n    foo: 1", 4, "model.options.foo"),
    ("matrix:\n  model.name: [medium, foo]", 2, "model.name"),
]
IMPOSSIBLE = (
    "http://:",
    "http://:80/v1",
    "http://?",
    "http://.../",
    "http://a:99999",
    "http://a:0/v1",
    "http://a:b/v1",
    "http://[::1",
    "http://a/v1?key=1",
    "http://user:hunter2@a:1/v1",
    "http://\N{SNOWMAN}/v1",
)


@pytest.mark.parametrize(("text", "line", "key"), REFUSED)
def test_it_is_refused_at_its_line(text: str, line: int, key: str, tmp_path: Path) -> None:
    recipe = tmp_path / "x.yaml"
    recipe.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(recipe), facts=Facts(hosts=()))
    assert [str(mistake).startswith(f"{recipe}:{line}: {key}") for mistake in caught.value.mistakes] == [True]


@pytest.mark.parametrize("url", IMPOSSIBLE)
def test_a_url_that_cannot_be_is_refused(url: str) -> None:
    words = ["--serving.target=endpoint", "--serving.endpoint.model=m", "--serving.rate_per_s=1"]
    with pytest.raises(ConfigError, match=r"^command line: serving\.endpoint\.url: ") as caught:
        load_config("serving", [*words, f"--serving.endpoint.url={url}"])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://localhost", "https://[::1]:443/v1", "http://10.0.0.1:8000/a/v1"])
def test_a_url_that_can_be_is_taken(url: str) -> None:
    words = ["--serving.target=endpoint", "--serving.endpoint.model=m", "--serving.rate_per_s=1"]
    assert (
        load_config("serving", [*words, f"--serving.endpoint.url={url}"]).config.serving.endpoint.url == url
    )


def test_a_run_that_was_made_before_a_rule_is_read() -> None:
    """`run.json` is validated by the model alone."""
    config = RunConfig.model_validate(
        {"serving": {"rate_per_s": 1.0}, "monitoring": {"host_interval_s": 0.1}}
    )
    assert RunConfig.model_validate(json.loads(config.model_dump_json())) == config


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize("command", ["run", "scale", "validate", "matrix"])
@pytest.mark.parametrize("word", ["-data.batch_size=4", "-monitoring.host_interval_s", "-h.h=1"])
def test_a_key_behind_one_dash_is_an_error(command: str, word: str) -> None:
    result = invoke(command, "quick", word)
    assert result.exit_code == 2
    assert f"{word}: a config key takes two dashes" in result.output


@pytest.mark.parametrize("command", ["run", "scale", "validate"])
def test_a_resumed_run_is_not_started_by_a_dry_run(command: str) -> None:
    result = invoke(command, "--resume", "nowhere", "--dry-run")
    assert isinstance(result.exception, UsageError)
    assert "--dry-run does not show" in str(result.exception)


def test_a_dry_run_shows_the_python_that_is_named() -> None:
    shown = invoke("run", "quick", "--dry-run", "--verbose", "--python", "python3")
    assert shown.stdout.startswith("python3 DIRECTORY/")
    missing = invoke("run", "quick", "--dry-run", "--python", "/nowhere/python3")
    assert isinstance(missing.exception, UsageError)
    assert missing.exception.place == "--python"
