"""What is opened often opens fast: help loads no heavy library, the node side no library at all."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "numpy",
    "scipy",
    "pydantic",
    "ruamel",
    "rich",
    "jinja2",
    "sklearn",
    "PIL",
    "textual",
    "asyncio",
)


def modules_after(program: str) -> set[str]:
    report = "import sys, json; sys.stderr.write('MODULES' + json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", f"import atexit\natexit.register(lambda: exec({report!r}))\n{program}"],
        capture_output=True,
        text=True,
    )
    return set(json.loads(result.stderr.rpartition("MODULES")[2]))


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["run", "--help"],
        ["report", "--help"],
        ["doctor", "--help"],
        ["init", "--help"],
        ["plugins", "--help"],
        ["config", "show", "--help"],
    ],
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    loaded = modules_after(
        f"import sys; sys.argv = ['gpuproof', *{words!r}]\nfrom gpuproof.cli.main import main; main()"
    )
    assert "gpuproof.cli.main" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_checks_of_a_machine_need_no_library_of_numbers() -> None:
    loaded = modules_after(
        "from gpuproof.doctor import host, meeting, network\n"
        "from gpuproof.verdict import check, facts, nccl_settings, page"
    )
    assert loaded.isdisjoint(HEAVY)


def test_a_worker_that_has_not_begun_has_loaded_no_torch() -> None:
    loaded = modules_after("import gpuproof.worker.__main__, gpuproof.worker.rank.assignment")
    assert "gpuproof.records.run" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_a_worker_that_loads_an_endpoint_has_loaded_no_torch() -> None:
    loaded = modules_after("import gpuproof.worker.serving.session")
    assert "gpuproof.records.run" in loaded
    assert "torch" not in loaded


def test_the_package_itself_loads_nothing_of_ours_until_a_name_is_used() -> None:
    loaded = modules_after("import gpuproof; dir(gpuproof)")
    assert {name for name in loaded if name.partition(".")[0] == "gpuproof"} == {"gpuproof"}
    assert loaded.isdisjoint(HEAVY)


def test_monitoring_a_block_loads_nothing_heavy() -> None:
    loaded = modules_after("import gpuproof; gpuproof.monitor('never-entered.jsonl')")
    assert "gpuproof.monitor.watch" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_the_list_of_commands_imports_none_of_them() -> None:
    loaded = modules_after(
        "import sys; sys.argv = ['gpuproof', '--help']\nfrom gpuproof.cli.main import main; main()"
    )
    ours = {name for name in loaded if name.startswith("gpuproof.cli.")}
    assert ours == {"gpuproof.cli.main", "gpuproof.cli.group"}
