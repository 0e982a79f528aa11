"""What a plan and a comparison say before anything runs: every launch, every stage, every key."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuproof.base.errors import UsageError
from gpuproof.cli.main import cli
from gpuproof.comparison.conditions import NO_CONDITIONS
from gpuproof.config.load import load_config
from gpuproof.suites.base import HostPlace
from gpuproof.suites.validate.options import read_options
from gpuproof.suites.validate.stages import _is_required
from planning import suite_of


def test_the_plan_of_a_fleet_lists_every_launch_of_every_host() -> None:
    config = load_config("load", ["--distributed.device=cpu"]).config
    places = (HostPlace(name="a"), HostPlace(name="b"))
    suite = suite_of(config, places)
    state = suite.begin(config, places)

    assert len(list(suite.next(state, {}, None))) == 2  # each host runs one launch at a time
    planned = [(case.placement.host, case.case_id) for case in suite.planned(state)]
    assert len(planned) == len(set(planned)) == 24
    assert {host for host, _ in planned} == {"a", "b"}


@pytest.mark.parametrize("recipe", ["quick", "burn-in"])
def test_a_soak_is_added_to_the_stages_of_the_recipe(recipe: str) -> None:
    words = ["validate", "--recipe", recipe, "--allow-cpu", "--nproc=2", "--dry-run"]
    own = read_options(load_config(f"validate-{recipe}", []).config).stages

    planned = CliRunner().invoke(cli, [*words, "--soak=1h"])

    assert planned.exit_code == 0
    (stages,) = (line for line in planned.output.splitlines() if line.startswith("stages: "))
    expected = [*(stage for stage in own if stage != "soak"), "soak"]
    assert set(stages.removeprefix("stages: ").split(", ")) <= set(expected)
    assert ("host_memory" in stages) == ("host_memory" in own)
    assert stages.endswith("soak")


@pytest.mark.parametrize("advisory", ["fingerprint", "fingerprint_hot"])
def test_a_hot_fingerprint_is_advisory_by_its_own_name_too(advisory: str) -> None:
    options = read_options(load_config("validate", [f"--validate.advisory=[{advisory}]"]).config)
    assert not _is_required("fingerprint_hot", options)
    assert _is_required("gemm", options)


def test_quick_is_about_the_device_on_a_gpu_as_on_a_cpu() -> None:
    assert [load_config(name, []).config.benchmark.of_device for name in ("quick", "quick-gpu")] == [
        True,
        True,
    ]


def test_lengths_of_windows_do_not_rule_out_a_comparison() -> None:
    assert {"benchmark.measure_steps", "benchmark.min_seconds", "benchmark.power_cap_limit_s"} <= set(
        NO_CONDITIONS
    )


@pytest.mark.parametrize(("row", "is_of_a_machine"), [("H200,", True), (",NVIDIA H200", True), (",", False)])
def test_a_threshold_of_a_chip_or_a_board_names_a_machine(
    row: str, is_of_a_machine: bool, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        f"name,quantity,value,unit,chip,board,dtype\ngood,matrix multiply,5e14,FLOP/s,{row},bf16\n"
    )
    read = CliRunner().invoke(cli, ["rules", "import", str(path), "--from", "table"])
    assert ("it names no machine" not in read.output) == is_of_a_machine


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run", "quick", "--retry-failed", "--dry-run"], "--retry-failed: no run is resumed"),
        (["validate", "--allow-cpu", "--retry-failed"], "--retry-failed: no run is resumed"),
        (["compare", "--ab", "--aa", "quick"], "--aa: A and B are either compared or the same"),
    ],
)
def test_options_that_contradict_each_other_start_nothing(words: list[str], reason: str) -> None:
    with pytest.raises(UsageError) as raised:
        CliRunner().invoke(cli, words, standalone_mode=False, catch_exceptions=False)
    assert str(raised.value).startswith(reason)
