"""Which data sets exist, where a run stores their prepared data, and how it is prepared.

In: a case and the run directory. Out: the file that `data_file` in the case's work block refers to. This is a
raw tensor file if samples are small or are moved to the device before the window, else a list of files that
stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpuproof.records.case import Case, ModelWork
from gpuproof.records.dataset_files import TensorFileHeader, write_tensor_file
from gpuproof.records.work.data import DataLoading, DataSplit
from gpuproof.workloads.info.base import InputShape
from gpuproof.workloads.info.lookup import find_workload

WITH_SPLITS = frozenset({"CIFAR10", "CIFAR100", "FashionMNIST", "ImageFolder"})

Say = Callable[[str], None]
"""Reports progress to the user, one line at a time."""


def prepared_file(name: str, *, loading: DataLoading, split: DataSplit, image_size: int | None) -> str | None:
    """Return where a run stores prepared data, relative to its directory; None for generated data."""
    if name == "synthetic":
        return None
    part = "-test" if name in WITH_SPLITS and split == "test" else ""
    if name == "tokens":
        return "data/tokens.json"
    if name == "ImageFolder":
        ending = ".json" if loading == "loader" else f"-{image_size}.tensors"
        return f"data/imagefolder{part}{ending}"
    return f"data/{name.lower()}{part}.tensors"


def prepare(case: Case, run_folder: Path, *, world_size: int, say: Say) -> None:
    """Write the case's data to the run directory, unless it is already there.

    Raises:
        UsageError: the data set is missing from its location, or is not what the model expects.
        EnvironmentUnfitError: a package is missing, or the data cannot be downloaded.
    """
    if case.data_file is None or (path := run_folder / case.data_file).exists():
        return
    work = case.model_work
    path.parent.mkdir(parents=True, exist_ok=True)
    name = work.data.name
    if name == "digits":
        prepare_digits(path)
    elif name in ("CIFAR10", "CIFAR100"):
        from gpuproof.datasets.downloaded import prepare_cifar

        prepare_cifar(path, work.data, say=say)
    elif name == "FashionMNIST":
        from gpuproof.datasets.downloaded import prepare_fashion_mnist

        prepare_fashion_mnist(path, work.data, say=say)
    elif name == "ImageFolder":
        from gpuproof.datasets.on_disk import prepare_image_folder

        prepare_image_folder(path, work, _shape(work), world_size=world_size, say=say)
    else:
        from gpuproof.datasets.on_disk import prepare_tokens

        prepare_tokens(path, work.data, vocab_size=_shape(work).num_targets)


def prepare_digits(path: Path) -> TensorFileHeader:
    """Write the digits as (1797, 1, 8, 8) uint8, grey levels 0–16 scaled to 0–255; return the header.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998,
    https://archive.ics.uci.edu/dataset/80, obtained through scikit-learn; see data/digits.LICENSE.txt.
    """
    import numpy as np

    with np.load(Path(__file__).parent / "data" / "digits.npz", allow_pickle=False) as table:
        levels, labels = table["levels"], table["labels"]
    images = np.round(levels * (255 / 16)).astype(np.uint8)[:, None]
    return write_tensor_file(
        path,
        name="digits",
        shape=images.shape,
        num_classes=10,
        images=images.tobytes(),
        labels=labels.tobytes(),
    )


def _shape(work: ModelWork) -> InputShape:
    info = find_workload(work.model.name)
    options = info.options_type(**work.model.options)
    return info.input_shape(options, work.data.image_size, work.model.num_classes)
