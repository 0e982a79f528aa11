"""What a file system refuses is told as the path's fault, in one sentence, and not as a bug of ours."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuproof.base.errors import EnvironmentUnfitError, UsageError, explained
from gpuproof.base.files import copying_results
from gpuproof.cli.main import cli

STARTED = "import sys; sys.argv[0] = 'gpuproof'; from gpuproof.cli.main import main; main()"


@pytest.mark.parametrize("words", [("monitor", "show"), ("run",)])
def test_a_name_that_no_file_can_have_is_a_mistake(words: tuple[str, ...]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STARTED, *words, "x" * 3_000], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "File name too long" in ended.stderr


def test_what_may_not_be_read_is_the_machines_fault() -> None:
    refused = explained(PermissionError(errno.EACCES, "Permission denied", "results"))
    assert isinstance(refused, EnvironmentUnfitError)
    assert str(refused).startswith("results: the file system rejects this path: Permission denied. ")


def test_a_link_that_leads_to_itself_is_a_mistake() -> None:
    assert isinstance(explained(OSError(errno.ELOOP, "Too many levels of links", "a")), UsageError)


@pytest.mark.parametrize("error", [OSError(errno.EBADF, "Bad file"), PermissionError(errno.EPERM, "no")])
def test_what_names_no_path_or_is_none_of_a_path_stays_a_fault_of_ours(error: OSError) -> None:
    assert explained(error) is None


def test_a_locale_that_cannot_write_a_name_is_told() -> None:
    with pytest.raises(UnicodeEncodeError) as caught:
        "results/é".encode("ascii")
    assert str(explained(caught.value)) == (
        "environment: the encoding ascii of this locale lacks 'é'. Set LC_ALL=C.UTF-8, or PYTHONUTF8=1."
    )
    with pytest.raises(UnicodeEncodeError) as caught:
        "\ud800".encode()
    assert explained(caught.value) is None  # a fault of ours


def test_results_that_cannot_be_copied_are_named_with_the_cause(tmp_path: Path) -> None:
    tree, target = tmp_path / "tree", tmp_path / "target"
    (tree / "case").mkdir(parents=True)
    target.mkdir()
    (target / "case").write_text("a file where a folder is copied to")
    with (
        pytest.raises(EnvironmentUnfitError, match=rf"^{target}: .*File exists.*results are in {tree}"),
        copying_results(tree, target),
    ):
        shutil.copytree(tree, target, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--junit", "absent/v.xml"), "--junit absent/v.xml: there is no such folder"),
        (("--bundle", "."), "--bundle .: cannot be written: Is a directory"),
        (("--write-rules", "ours.yaml"), "--write-rules ours.yaml: cannot be written: File exists"),
    ],
)
def test_what_is_written_at_the_end_is_tried_before_anything_is_measured(
    words: tuple[str, ...], cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ours.yaml").write_text("rules: []")
    refused = CliRunner().invoke(cli, ["validate", "--allow-cpu", "--dry-run", *words]).exception
    assert isinstance(refused, UsageError)
    assert str(refused).startswith(cause)


@pytest.mark.parametrize("name", ["CIFAR10", "FashionMNIST"])
def test_data_that_can_be_fetched_is_refused_with_the_whole_command(name: str, tmp_path: Path) -> None:
    words = ("run", "quick", f"--data.name={name}", "--data.path=my data")
    more = ("--model.name=resnet18", "--distributed.device=cpu")
    ended = subprocess.run(
        [sys.executable, "-c", STARTED, *words, *more],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].split("gpuproof ")[-1] == (
        f"run quick --data.name={name} '--data.path=my data' {' '.join(more)} --data.download=true"
    )
