"""Sizes that fit the device: a fixed table by memory and cache, in the place of `auto`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpuproof.base.files import packaged_rows
from gpuproof.cli.gates import counts
from gpuproof.config.load import load_config
from gpuproof.records.codec import from_json
from gpuproof.records.work.device_sizes import GIB, MIB, UNFITTED, sizes_for
from gpuproof.suites.base import THIS_MACHINE
from gpuproof.suites.validate.options import ValidateOptions, read_options
from gpuproof.suites.validate.plan import begin_order
from gpuproof.suites.validate.stages import recipe_of
from gpuproof.workloads.info.lookup import find_workload

H100_BYTES = 85_520_809_984
"""As torch tells it."""


@pytest.mark.parametrize(
    ("memory_gib", "cache_mib", "edge", "buffer_mib", "batch"),
    [
        (79.65, 50, 8192, 4096, 8),  # H100: as recorded
        (140.4, 60, 8192, 4096, 8),  # H200
        (191.7, 32, 8192, 8192, 8),  # MI300X: torch tells of its L2, and 256 MiB lie behind that
        (39.4, 40, 8192, 3072, 4),  # A100 40GB
        (31.4, 96, 8192, 3072, 4),  # RTX 5090
        (23.6, 72, 8192, 2304, 2 + 2),  # RTX 4090
        (15.6, 6, 8192, 1536, 2),  # V100 16GB
        (23.6, 128, 8192, 4096, 4),  # a cache that the table does not know of raises the buffer
        (4.0, None, 1024, 64, None),  # a simulated GPU as it comes
        (None, None, 1024, 64, None),  # a processor
    ],
)
def test_sizes_go_by_memory_and_cache(
    memory_gib: float | None, cache_mib: int | None, edge: int, buffer_mib: int, batch: int | None
) -> None:
    memory_bytes = None if memory_gib is None else int(memory_gib * GIB)
    sizes = sizes_for(memory_bytes, cache_bytes=None if cache_mib is None else cache_mib * MIB)
    assert (sizes.gemm_edge, sizes.buffer_bytes, sizes.batch_of_350m) == (edge, buffer_mib * MIB, batch)


def test_the_table_holds_its_own_rules() -> None:
    rows = packaged_rows("records/sizes.csv")
    least = [int(row["memory_gib"]) for row in rows]
    assert least == sorted(least, reverse=True)
    for row in rows:
        memory_mib, buffer_mib = int(row["memory_gib"]) * 1024, int(row["buffer_mib"])
        assert buffer_mib >= 32 * int(row["cache_mib"])
        assert buffer_mib <= 0.15 * memory_mib  # the cache goes first: a tenth where it lets
        assert 3 * buffer_mib < 0.5 * memory_mib
        if (
            row["batch_of_350m"] is not None
        ):  # 5.2 GiB whatever the batch, and 2.7 GiB a sequence, as on an H100
            assert 5.2 + 2.75 * int(row["batch_of_350m"]) < int(row["memory_gib"])


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("gemm", {"m": "auto", "n": 512, "k": "auto"}, {"m": 8192, "k": 8192}),
        ("gemm", {"m": 64, "n": 64, "k": 64}, {}),
        ("memory", {"buffer_bytes": "auto"}, {"buffer_bytes": 4 * GIB}),
        ("memory", {"buffer_bytes": 4096}, {}),
    ],
)
def test_only_what_is_auto_is_fitted(
    name: str, options: Mapping[str, Any], expected: Mapping[str, int]
) -> None:
    info = find_workload(name)
    assert info.fitted is not None
    assert info.fitted(info.options_type(**options), sizes_for(H100_BYTES)) == expected


def stages_on(device: str, *words: str) -> dict[str, Any]:
    config = load_config("validate-quick", [f"--distributed.device={device}", *words]).config
    order = begin_order(config, THIS_MACHINE)
    return {case.name: recipe_of(case, config) for stage in order.stages for case in stage.cases}


def test_the_quick_validation_fills_gpus_and_stays_small_elsewhere() -> None:
    gpu, cpu, simulated = (stages_on(device) for device in ("cuda", "cpu", "simgpu"))
    assert (gpu["training"].model.name, gpu["training"].data.batch_size) == ("resnet50", 128)
    assert gpu["training"].training.precision == "bf16"
    assert {"gemm-bf16-device0"} < set(gpu)
    for small, name in ((cpu, "gemm-fp32-one"), (simulated, "gemm-fp32-device0")):
        assert (small["training"].model.name, small["training"].data.batch_size) == ("resnet18", 8)
        assert small[name].model.options == {"m": "auto", "n": "auto", "k": "auto"}
    assert stages_on("cuda", "--validate.gemm_size=512")["gemm-bf16-device0"].model.options["m"] == 512
    assert stages_on("cuda", "--validate.on_gpus={}")["training"].model.name == "resnet18"


@pytest.mark.parametrize(("device", "largest"), [("cuda", "1G"), ("cpu", "16M")])
def test_messages_of_collectives_are_large_over_gpus(device: str, largest: str) -> None:
    config = load_config("validate-quick").config
    options = read_options(config).on(gpus=device == "cuda")
    assert options.collective is not None
    assert options.collective["max_bytes"] == largest


@pytest.mark.parametrize("value", ["large", 1.5, ["auto"]])
def test_another_word_is_no_size(value: object) -> None:
    with pytest.raises(Exception, match="gemm_size"):
        from_json(ValidateOptions, {"gemm_size": value}, place="validate")


@pytest.mark.parametrize(
    ("words", "memory_bytes", "batch"),
    [
        ([], [H100_BYTES], 8),
        ([], [H100_BYTES, 24 * GIB], 4),  # the smallest decides
        ([], [4 * GIB], None),
        ([], [], None),  # torch sees none
        (["--model.name=resnet50"], [H100_BYTES], None),
        (["--data.batch_size=4"], [H100_BYTES], None),
        (["--distributed.device=cpu"], [H100_BYTES], None),
        (["--training.precision=fp32"], [H100_BYTES], 8),
    ],
)
def test_a_quick_run_fills_the_gpu(
    words: list[str], memory_bytes: list[int], batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe's answer stands in for a GPU, which no test has."""

    def answer(_python: str | None = None, *, words: list[str]) -> dict[str, Any]:
        devices = [{"kind": "cuda", "memory_total_bytes": size} for size in memory_bytes]
        return {"users": [{}], "devices": devices, "accelerators": {"silent": []}}

    monkeypatch.setattr("gpuproof.launchers.probe.probe", answer)
    recipe, run_words = counts.filling("quick", words, python=None)
    if batch is None:
        assert (recipe, run_words) == ("quick", words)
        return
    config = load_config(recipe, run_words).config
    assert (config.model.options["preset"], config.data.batch_size) == ("350m", batch)
    assert config.run.notes is not None
    assert "of memory: the 350M decoder" in config.run.notes


def test_what_is_not_on_a_gpu_is_unfitted() -> None:
    assert sizes_for(2 * GIB) == sizes_for(None) == UNFITTED
