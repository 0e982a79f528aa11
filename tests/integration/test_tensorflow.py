"""`gpuproof scale --framework tensorflow`: the node side as one file, under a Python that has no torch.

`make test-long` makes that environment; it is of its own, since TensorFlow's needs are not to meet torch's.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpuproof.records.breakdown import GradientSync
from gpuproof.records.run import Environment, Evaluation, RankResult
from gpuproof.store.run import RunDirectory
from running import clean_environment, gpuproof

PYTHON = Path(__file__).parents[2] / ".venv-tensorflow" / "bin" / "python"
installed = pytest.mark.skipif(
    not PYTHON.exists(), reason="no environment with TensorFlow: make .venv-tensorflow/ready"
)
NO_GPU = clean_environment(CUDA_VISIBLE_DEVICES="")


@installed
@pytest.mark.long
@pytest.mark.promise("S2.12")
def test_one_process_on_two_logical_devices_writes_the_records_of_a_study(tmp_path: Path) -> None:
    assert subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 1
    result = gpuproof(
        *("scale", "--framework", "tensorflow", "--python", str(PYTHON), "--reduction", "hierarchical_copy"),
        *("--device", "cpu", "--max-devices", "2", "--gpu-mode", "multi", "--scaling", "strong"),
        *("--runs", "1", "--batch-sizes", "64", "--output-dir", "out", "--run.run_id=one"),
        "--verbose",
        *("--benchmark.measure_steps=30", "--benchmark.warmup_steps=3"),
        cwd=tmp_path,
        environment=NO_GPU,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    found = {
        case.case.case_id: case for case in RunDirectory.open(tmp_path / "out" / "scale" / "one").cases()
    }
    one, two = found["bs64-n1"], found["bs64-n2-strong"]
    for launch, num_devices, reduction in ((one, 1, None), (two, 2, "hierarchical_copy")):
        (setup,), (window,), (end,) = launch.setups, launch.windows, launch.of(RankResult)
        assert setup.replicas is not None
        assert setup.replicas.framework.startswith("TensorFlow 2.")
        assert (setup.replicas.num_devices, setup.replicas.reduction) == (num_devices, reduction)
        assert setup.num_parameters == 54_403
        # strong scaling: as many samples a step on two devices as on one, and FLOPs are of each device
        assert (setup.items_per_step, window.items, window.num_steps) == (64, 30 * 64, 30)
        assert setup.flops_per_step == one.setups[0].flops_per_step / num_devices  # type: ignore[operator]
        assert window.clock == "host"
        assert "timed by the host's clock: a step is complete when its call returns" in setup.notes
        # of normal targets the mean squared error is about 1, however many replicas share the batch
        assert end.last_loss is not None
        assert 0.5 < end.last_loss < 1.7
        assert len(launch.step_times_s(0)) == 30
        (errors,) = launch.of(Evaluation)
        assert errors.mean_loss is not None
        assert errors.mean_absolute_error is not None
        assert 0.3 < errors.mean_absolute_error < errors.mean_loss**0.5 < 1.5
    (facts,) = (record.facts for record in two.of(Environment))
    assert facts["torch"] is None
    assert facts["tensorflow"].startswith("2.")
    (sync,) = two.of(GradientSync)
    assert "one graph" in (sync.missing or "")
    _check_files(tmp_path / "out")
    assert "summed the gradients of its replicas by hierarchical_copy" in result.stdout


def _check_files(folder: Path) -> None:
    (single,) = json.loads((folder / "benchmark_medium_single_gpu.json").read_text())
    (multi,) = json.loads((folder / "benchmark_medium_multi_gpu.json").read_text())
    assert (single["num_devices"], single["reduction"]) == (1, None)
    assert (multi["num_devices"], multi["reduction"]) == (2, "hierarchical_copy")
    assert (multi["samples_per_device"], multi["model_parameters"]) == (32, 54_403)
    assert multi["mean_communication_ms"] is None
    assert "one graph" in multi["communication_missing"]
    assert "Multi-GPU Performance Comparison: medium" in (folder / "comparison_report_medium.md").read_text()


def test_a_python_without_tensorflow_is_refused_before_anything_is_launched(tmp_path: Path) -> None:
    refused = gpuproof(
        *("scale", "--framework", "tensorflow", "--device", "cpu", "--max-devices", "2"),
        cwd=tmp_path,
        environment=NO_GPU,
    )
    assert refused.returncode == 5
    assert "TensorFlow " in refused.stderr
    assert "--python PATH" in refused.stderr
    assert not (tmp_path / "results").exists()
