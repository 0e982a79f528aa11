"""What synthetic samples are: drawn on the device, each kind as its requirement says."""

from __future__ import annotations

import pytest
import torch

from gpuproof.worker.data.sources import draw_samples
from gpuproof.workloads.info.base import InputShape

NUM = 10_000


@pytest.mark.promise("S2.15")
def test_features_depend_on_each_other_as_published_and_targets_are_normal() -> None:
    shape = InputShape(kind="features", shape=(50,), num_targets=3)
    inputs, targets = draw_samples(shape, NUM, seed=42, device=torch.device("cpu"))
    assert (inputs.shape, inputs.dtype, targets.shape) == ((NUM, 50), torch.float32, (NUM, 3))
    first, second, third = (inputs[:, i].double() for i in range(3))
    # what is left of them is noise of 0.3 and 0.4 that has nothing to do with what they come from
    noise_2, noise_3 = second - 0.7 * first, third - 0.5 * first + 0.3 * second
    for noise, size in ((noise_2, 0.3), (noise_3, 0.4)):
        assert float(noise.std()) == pytest.approx(size, rel=0.03)
        assert abs(float(torch.corrcoef(torch.stack([noise, first]))[0, 1])) < 0.05
    assert float(targets.mean()) == pytest.approx(0.0, abs=0.03)
    assert float(targets.std()) == pytest.approx(1.0, rel=0.03)


@pytest.mark.promise("S3.2", "S3.22")
def test_images_are_normal_and_their_labels_whole_numbers_that_come_alike_often() -> None:
    shape = InputShape(kind="image", shape=(3, 8, 8), num_targets=10)
    images, labels = draw_samples(shape, NUM, seed=0, device=torch.device("cpu"))
    assert (images.shape, images.dtype) == ((NUM, 3, 8, 8), torch.float32)
    assert (labels.shape, labels.dtype) == ((NUM,), torch.int64)
    assert float(images.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(images.std()) == pytest.approx(1.0, rel=0.01)
    counts = torch.bincount(labels)
    # 1,000 of each are expected, with a standard deviation of 30
    assert (len(counts), bool((counts > 850).all()), bool((counts < 1150).all())) == (10, True, True)
