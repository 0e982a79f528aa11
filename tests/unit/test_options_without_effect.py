"""Options of the command line that had no effect, and wrong values that ended in a traceback."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuproof.cli.main import cli
from gpuproof.config.host_forms import hosts_document
from gpuproof.config.load import load_config, recipe_names
from gpuproof.suites.matrix.plan import plan

NAMES = [f"node-{number:03}.example.com" for number in range(30)]
DRY = ("validate", "--recipe=quick", "--device=cpu", "--allow-cpu", "--dry-run")
SWEEP = "matrix:\n  data.batch_size: [2, 4]\ndistributed: {device: cpu}\n"


def call(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, list(words), input=stdin)


def said(result: Result) -> str:
    return result.output + str(result.exception or "")


def test_a_long_list_of_names_is_not_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    document, _ = hosts_document(",".join(NAMES), user=None)
    assert [host["host"] for host in document.data["hosts"]] == NAMES
    assert call(*DRY, "--expected-hosts", ",".join(NAMES)).exit_code == 0


@pytest.mark.parametrize("wanted", ["data.batch_size=2", "batch_size=2,9"])
def test_points_of_a_workload_are_chosen(tmp_path: Path, wanted: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(SWEEP)
    config = load_config(str(path), ["--suite=matrix", f"--cases.only={json.dumps([wanted])}"]).config
    planned = plan(config)
    assert list(planned.cases) == ["batch_size=2"]
    assert planned.case(planned.order[0]).case_id == "batch_size=2"


def test_every_recipe_is_shown_as_yaml_that_loads(tmp_path: Path) -> None:
    for name in recipe_names():
        path = tmp_path / f"{name}.yaml"
        path.write_text(call("config", "show", name).output)
        assert call("config", "show", str(path)).exit_code == 0, name


@pytest.mark.parametrize(
    ("written", "step"),
    [("data.batch_size", "Write --data.batch_size=VALUE"), ("run.time_limit_s", "Write null for none")],
)
def test_null_is_proposed_only_where_it_is_accepted(written: str, step: str) -> None:
    assert step in said(call("config", "show", "quick", f"--{written}="))


def test_files_are_read_however_they_are_encoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts.txt").write_bytes(b"\xef\xbb\xbfnode1\r\nnode2\r\n")
    Path("latin.txt").write_bytes(b"node1\n\xe9\n")
    Path("rules.yaml").write_bytes(b"\xef\xbb\xbfrules:\r\n  - check: ecc\r\n")
    assert call(*DRY, "--expected-hosts=hosts.txt", "--rules=rules.yaml").exit_code == 0
    assert "not UTF-8 text" in said(call(*DRY, "--expected-hosts=latin.txt"))


@pytest.mark.parametrize("number", ["abc", "1.5"])
def test_a_number_of_ranks_is_a_number(number: str) -> None:
    assert "distributed.nproc: expected a whole number" in said(call(*DRY, "--nproc", number))


@pytest.mark.parametrize("gib", ["inf", "1e400", "1e300"])
def test_no_device_has_infinite_memory(tmp_path: Path, gib: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(SWEEP)
    words = ("matrix", str(path), "--dry-run", "--wait-for-memory", gib)
    assert "command line: cases.wait_for_memory: " in said(call(*words))


@pytest.mark.parametrize(
    "words",
    [
        ("baseline", "use", "pod", "last", "--share", "nan"),
        ("baseline", "record", "pod", "last", "--day-effect", "nan"),
        ("doctor", "--multi-node", "--wait", "nan"),
        ("monitor", "compare", "a", "b", "--busy", "nan"),
        ("monitor", "record", "--duration", "inf"),
        ("run", "quick", "--lease", "nan"),
        ("run", "quick", "--connect-timeout", "nan"),
        ("load", "--metrics-sample-rate", "nan"),
        ("kubernetes", "clean", "--older-than", "nan"),
        ("kubernetes", "clean", "--older-than", "1e9"),
    ],
)
def test_a_number_outside_every_range_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpuproof.cli.options.RunName.convert", lambda *_: tmp_path)
    refused = call(*words)
    assert (refused.exit_code, "Invalid value" in refused.output) == (2, True), said(refused)


def test_a_rules_file_is_checked_in_json(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - check: ecc\n")
    assert json.loads(call("rules", "check", str(path), "--json").output)["num_rules"] == 1
    assert "Add --run RUN" in said(call("rules", "check", str(path), "--baseline", "pod"))


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused = call(*DRY, "--junit", str(pipe))
    assert "it is a pipe, not a plain file" in said(refused)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_recipe_that_cannot_be_written_is_refused_before_the_machine_is_probed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuproof.launchers.probe.probe", lambda *_a, **_k: pytest.fail("probed"))
    assert "there is no such folder" in said(call("init", "-o", "absent/recipe.yaml"))


def test_nothing_read_is_not_a_reading() -> None:
    assert call("monitor", "live", "--once", "-", stdin="").exit_code != 0


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")
    assert "not a recording" in said(call("monitor", "live", "--once", str(path)))


def test_options_of_a_meeting_need_one() -> None:
    assert "is for --multi-node" in said(call("doctor", "--master", "h", "--port", "1"))


def test_an_empty_address_is_not_every_address() -> None:
    assert "no address is given" in said(call("monitor", "serve", "--address", ""))


def test_cases_are_finished_or_rerun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("gpuproof.cli.options.RunName.convert", lambda *_: tmp_path)
    assert "Omit --continue-dir or --rerun-dir" in said(call("matrix", "--continue-dir=a", "--rerun-dir=b"))
    assert "Add --continue-dir RUN" in said(call("matrix", "m.yaml", "--retry-failed"))
    assert "Add --resume RUN" in said(call("compare", "--ab", "quick", "--b.run.notes=x", "--retry-failed"))


def test_a_scaling_study_is_not_one_job(tmp_path: Path) -> None:
    path = tmp_path / "hosts.json"
    path.write_text('{"hosts": [{"host": "10.0.0.1", "gpus": 2}, {"host": "10.0.0.2", "gpus": 2}]}')
    words = ("scale", "--on", f"ssh:{path}", "--dry-run")
    assert "not one job over them all" in said(call(*words, "--one-job"))
    assert call(*words).exit_code == 0


def test_options_of_hosts_need_hosts() -> None:
    assert "no hosts are named" in said(call("run", "quick", "--dry-run", "--ssh-key", "k"))
