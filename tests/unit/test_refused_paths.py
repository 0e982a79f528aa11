"""What a file system refuses is told as the path's fault, in one sentence, and not as a bug of ours."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from gpuproof.errors import EnvironmentUnfitError, UsageError, explained

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
    assert str(refused).startswith("results: the file system refuses this path: Permission denied. ")


def test_a_link_that_leads_to_itself_is_a_mistake() -> None:
    assert isinstance(explained(OSError(errno.ELOOP, "Too many levels of links", "a")), UsageError)


@pytest.mark.parametrize("error", [OSError(errno.EBADF, "Bad file"), PermissionError(errno.EPERM, "no")])
def test_what_names_no_path_or_is_none_of_a_path_stays_a_fault_of_ours(error: OSError) -> None:
    assert explained(error) is None


def test_a_locale_that_cannot_write_a_name_is_told() -> None:
    with pytest.raises(UnicodeEncodeError) as caught:
        "results/é".encode("ascii")
    assert str(explained(caught.value)) == (
        "environment: this locale writes ascii, which has no 'é'. Set LC_ALL=C.UTF-8, or PYTHONUTF8=1."
    )
    with pytest.raises(UnicodeEncodeError) as caught:
        "\ud800".encode()
    assert explained(caught.value) is None  # a fault of ours
