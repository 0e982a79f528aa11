"""`report`, `runs` and the log options, called as a person would, in this process and without torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from gpuproof.cli.main import cli
from gpuproof.cli.options import start_logging
from gpuproof.conclude import conclude
from gpuproof.errors import ExitCode, RecordError, UsageError
from gpuproof.launchers.archive import node_side_for
from gpuproof.launchers.commands import INSTALLED_WORKER
from gpuproof.records.codec import to_json
from records_by_hand import one_rank, write_run


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def test_report_prints_the_same_as_the_run_did_and_ends_as_it_did(tmp_path: Path) -> None:
    run = write_run(tmp_path, [one_rank(items=1).records()])
    shown = call("report", str(run.root))
    assert shown.exit_code == ExitCode.INCONCLUSIVE
    assert "INVALID: do not use these figures" in shown.output
    as_json = call("report", str(run.root), "--json")
    assert json.loads(as_json.stdout) == to_json(conclude(run, config_of(run)).report)


def test_report_of_nothing_is_a_usage_error(tmp_path: Path) -> None:
    result = call("report", str(tmp_path))
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == ExitCode.USAGE


def test_runs_lists_every_run_even_beside_a_damaged_one(tmp_path: Path) -> None:
    good = write_run(tmp_path, [one_rank().records()], run_id="good")
    conclude(good, config_of(good))
    write_run(tmp_path, [], run_id="begun")
    (write_run(tmp_path, [], run_id="damaged").root / "run.json").write_text("{")
    rows = {
        Path(row["run"]).name: row
        for row in json.loads(call("runs", "--save-dir", str(tmp_path), "--json").stdout)
    }
    assert rows["good"]["launches"] == "1/1"
    assert rows["good"]["throughput_samples_per_s"] == 1000
    assert rows["good"]["validity"] == "VALID"
    assert (rows["begun"]["launches"], rows["begun"]["validity"]) == ("0/1", None)
    assert "cannot be read" in rows["damaged"]["what"]
    shown = call("runs", "--save-dir", str(tmp_path))
    assert shown.exit_code == 0
    assert "1,000 samples/s" in shown.output
    assert "not concluded" in shown.output


def test_runs_says_how_to_begin_where_there_are_none(tmp_path: Path) -> None:
    shown = call("runs", "--save-dir", str(tmp_path))
    assert shown.output == f"No runs under {tmp_path}. Start one: gpuproof run quick\n"


def test_a_damaged_run_cannot_be_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path, [])
    (run.root / "run.json").write_text("{")
    assert isinstance(call("report", str(run.root)).exception, RecordError)


@pytest.fixture
def gpuproof_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("gpuproof")
    before = (logger.level, logger.propagate, list(logger.handlers))
    yield logger
    for handler in set(logger.handlers) - set(before[2]):
        handler.close()
    logger.level, logger.propagate, logger.handlers = before


def test_the_log_takes_every_detail_and_the_terminal_what_is_done(
    tmp_path: Path, gpuproof_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    start_logging(tmp_path / "run.log", verbose=True)
    gpuproof_logger.debug("detail")
    gpuproof_logger.info("done")
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert [line.partition(" DEBUG ")[2] or line.partition(" INFO ")[2] for line in lines] == [
        *("gpuproof: detail", "gpuproof: done"),
    ]
    assert capsys.readouterr().err == "done\n"


@pytest.mark.usefixtures("gpuproof_logger")
def test_a_log_that_cannot_be_written_is_a_bad_option(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="No such file or directory"):
        start_logging(tmp_path / "absent" / "run.log", verbose=False)


def test_another_python_gets_the_node_side_as_one_file() -> None:
    with node_side_for(None) as words:
        assert words == INSTALLED_WORKER
    with node_side_for("python3") as words:
        (archive,) = map(Path, words)
        assert archive.name == "gpuproof-node.pyz"
        assert archive.stat().st_size > 10_000
    assert not archive.exists()
