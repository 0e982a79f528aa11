"""Short names of runs, names that were probably meant, completion, and help where nothing is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from gpuproof.base.errors import UsageError
from gpuproof.campaign.conclude import conclude
from gpuproof.cli.main import COMMANDS, cli
from gpuproof.report.terminal import LOG_WIDTH
from gpuproof.store.names import find_run
from records_by_hand import one_rank, write_run

NAMES = ("run_20261122T120000_1", "run_20261121T120000_2", "before")
"""Newest first."""


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three concluded runs under `results`, where a user stands."""
    monkeypatch.chdir(tmp_path)
    for age_s, name in enumerate(NAMES):
        run = write_run(Path("results"), [one_rank().records()], run_id=name)
        conclude(run)
        os.utime(run.root / "run.json", (1e9 - age_s, 1e9 - age_s))
    return Path("results")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("last", 0), ("1", 0), ("3", 2), ("run_20261121", 1), ("bef", 2), ("examples/before", 2)],
)
def test_a_short_name_is_one_run(name: str, meant: int, results: Path) -> None:
    assert find_run(name).name == NAMES[meant]
    shown = call("report", name, "--json")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["run_id"] == NAMES[meant]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("4", "there is no run 4: runs are numbered from 1 to 3"),
        ("0", "there is no run 0"),
        ("run_2026", "several runs start with run_2026: examples/run_20261122T120000_1, examples/run_2026"),
        ("absent", "absent: not a run directory"),
    ],
)
def test_a_name_of_none_or_of_several_is_refused(name: str, said: str, results: Path) -> None:
    refused = call("report", name)
    assert isinstance(refused.exception, UsageError)
    assert said in str(refused.exception)


def test_a_whole_name_wins_over_those_that_begin_like_it_and_a_path_over_all(results: Path) -> None:
    write_run(results, [one_rank().records()], run_id="before_that")
    assert find_run("before").name == "before"
    Path("1").mkdir()
    assert find_run("1") == Path("1")


@pytest.mark.parametrize(
    "words",
    [
        *(("run", "--resume"), ("load", "--resume"), ("scale", "--resume"), ("validate", "--resume")),
        *(("matrix", "--continue-dir"), ("matrix", "--rerun-dir"), ("validate", "--from")),
        *(("compare", "--resume"), ("baseline", "record", "fleet"), ("baseline", "use", "fleet")),
        *(("compare", "1"), ("report",), ("rules", "check", "rules.yaml", "--run")),
    ],
    ids=" ".join,
)
def test_every_command_that_takes_a_run_takes_a_short_name(words: tuple[str, ...], results: Path) -> None:
    """A number that is too high is looked for among the runs, and not on the disk."""
    Path("rules.yaml").write_text("rules: [{name: any, measure: throughput, at_least: 1}]\n")
    refused = call(*words, "77")
    assert isinstance(refused.exception, UsageError), refused.output
    assert "there is no run 77: runs are numbered from 1 to 3" in str(refused.exception)


@pytest.mark.parametrize("width", [80, LOG_WIDTH])
def test_the_list_never_breaks_a_name_and_numbers_are_its_own(
    width: int, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that leaves no room for results ends in …, and each number still means its run."""
    monkeypatch.setattr("gpuproof.report.terminal.LOG_WIDTH", width)
    monkeypatch.setenv("COLUMNS", str(width))
    name = "run_20261122T120000_123456_of_a_long_kind"
    write_run(results, [], run_id=name)
    lines = call("runs").stdout.splitlines()
    assert all(len(line) <= width for line in lines)
    cells = next(line.split() for line in lines if name[:20] in line)
    shown = next(cell for cell in cells if cell.startswith("examples/"))
    assert f"examples/{name}".startswith(shown.removesuffix("…"))
    assert find_run(cells[0]).name == name
    for known in NAMES:
        assert any(f"examples/{known} " in line for line in lines)


@pytest.mark.parametrize(("typed", "meant"), [("rum", "run"), ("reprot", "report"), ("monitr", "monitor")])
def test_a_command_that_was_probably_meant_is_named(typed: str, meant: str) -> None:
    refused = call(typed)
    assert refused.exit_code == 2
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in refused.output
    assert "Did you mean 'exec'?" in call("monitor", "exce").output
    assert "Did you mean" not in call("xyzzy").output


def test_without_arguments_the_help_is_shown_and_nothing_failed() -> None:
    command = [sys.executable, "-m", "gpuproof"]
    shown, helped = (
        subprocess.run(words, capture_output=True, text=True) for words in (command, [*command, "--help"])
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == helped.stdout
    assert call("monitor").exit_code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_the_shell_asks_click_with(shell: str) -> None:
    printed = call("completion", shell)
    assert printed.exit_code == 0, printed.output
    assert f"_GPUPROOF_COMPLETE={shell}_complete" in printed.stdout
    assert call("completion", "tcsh").exit_code == 2


def completions(*words: str) -> set[str]:
    *before, incomplete = words
    shell = ShellComplete(cli, {}, "gpuproof", "_GPUPROOF_COMPLETE")
    return {item.value for item in shell.get_completions(list(before), incomplete)}


def test_commands_recipes_keys_and_runs_are_completed(results: Path) -> None:
    Path("mine.yaml").touch()
    assert {"run", "runs", "rules"} <= completions("ru") | completions("r")
    assert completions("run", "q") == {"quick", "quick-gpu"}
    assert {"serving", "load"} <= completions("run", "")
    assert completions("run", "mi") == {"mine.yaml"}
    assert completions("run", "quick", "--training.prec") == {"--training.precision="}
    assert "--resume" in completions("run", "--re")
    assert completions("report", "be") == {"before"}
    assert {"last", *NAMES} <= completions("run", "--resume", "")


def test_bash_completes_with_the_printed_script(results: Path) -> None:
    """The shell's own: source what is printed, and ask it to complete a command and a key."""
    folder = Path("bin").absolute()
    folder.mkdir()
    program = folder / "gpuproof"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{STARTED}" "$@"\n')
    program.chmod(0o755)
    asked = (
        'eval "$(gpuproof completion bash)"; complete -p gpuproof; '
        'for line in "gpuproof repo" "gpuproof run --training.prec"; do '
        "COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); "
        '_gpuproof_completion gpuproof; echo "${COMPREPLY[@]}"; done'
    )
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", asked], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["report", "--training.precision="]


STARTED = "import sys; sys.argv[0] = 'gpuproof'; from gpuproof.cli.main import main; main()"


def test_a_machine_that_lacks_something_is_looked_at_first(tmp_path: Path) -> None:
    from gpuproof.records.collected import CaseRecords
    from records_by_hand import case, failure, start

    run = write_run(tmp_path, [CaseRecords(case=case(), records=(start(), failure("environment")))])
    shown = call("report", str(run.root)).output
    assert shown.index("  gpuproof doctor\n") < shown.index("gpuproof run --resume")


def test_the_table_of_commands_names_them_all() -> None:
    context = click.Context(cli)
    assert [name for name in COMMANDS if cli.get_command(context, name) is None] == []
