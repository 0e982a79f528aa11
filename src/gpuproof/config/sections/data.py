"""`data`: where the samples come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gpuproof.config.sections.base import ConfigSection
from gpuproof.records.work.data import DataLoading, DataSplit, TokenType
from gpuproof.records.work.options import Text

DatasetName = Literal["synthetic", "digits", "CIFAR10", "CIFAR100", "FashionMNIST", "ImageFolder", "tokens"]
_DATASETS: dict[str, DatasetName] = {
    "synthetic": "synthetic",
    "digits": "digits",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "fashionmnist": "FashionMNIST",
    "fashion_mnist": "FashionMNIST",
    "imagefolder": "ImageFolder",
    "tokens": "tokens",
}

DownloadUrl = Annotated[
    str, Field(pattern=r"^https?://[^\s]+$", max_length=4096, json_schema_extra={"format": "web-address"})
]
Checksum = Annotated[
    str,
    Field(
        pattern=r"^(md5:[0-9a-fA-F]{32}|sha256:[0-9a-fA-F]{64})$", json_schema_extra={"format": "checksum"}
    ),
]


def _canonical_dataset(name: Any) -> Any:
    return _DATASETS.get(name.casefold(), name) if isinstance(name, str) else name


class DataConfig(ConfigSection):
    """Where the samples come from."""

    name: Annotated[DatasetName, BeforeValidator(_canonical_dataset)] = "synthetic"
    """The data set, upper or lower case. synthetic is drawn; digits come with gpuproof; CIFAR10, CIFAR100,
    FashionMNIST, ImageFolder (a folder of images a class) and tokens (for a language model) are at
    data.path."""
    path: Text | None = None
    """Where the data set is: the folder that holds CIFAR's own folder (cifar-100-python or
    cifar-10-batches-py), or fashion-mnist with the four .gz files of FashionMNIST; the folder with
    train/CLASS/*.jpg and test/ or val/ for ImageFolder; the file of ids for tokens (no header, little
    endian, cut into sequences of the model's length plus one)."""
    batch_size: int = Field(default=256, ge=1, le=2**20)
    """Samples per rank in one micro-batch."""
    num_workers: int = Field(default=8, ge=0, le=1024)
    """Processes per rank that load data; 0 loads inside the step."""
    pin_memory: bool = True
    """Load into page-locked memory, which copies faster to a GPU."""
    prefetch_factor: int | None = Field(default=4, ge=1, le=1024)
    """Batches that each loading process keeps ready."""
    persistent_workers: bool = True
    """Keep the loading processes from epoch to epoch; false starts them anew each time."""
    samples_per_epoch: int = Field(default=10_000, ge=1, le=10**9)
    """Samples that one epoch of the endless synthetic stream counts."""
    loading: DataLoading = "device"
    """How samples come to the device: device has a pool of them there before the window, so that compute
    alone is measured; loader runs a torch DataLoader beside the steps, which copy each batch, and says how
    long they waited for it. The last, partial batch of an epoch is always dropped."""
    split: DataSplit = "train"
    """The part of the data set, where it has parts (CIFAR, FashionMNIST, ImageFolder)."""
    held_out: float = Field(default=0.0, ge=0, lt=1)
    """Share of the images of digits, CIFAR or FashionMNIST that steps never take, the same ones whatever the
    seed; benchmark.evaluate_after looks at them by themselves."""
    token_type: TokenType = "uint16"  # noqa: S105  # tokens of text
    """How the file of tokens holds an id: uint16 or uint32, little endian."""
    download: bool = False
    """Fetch CIFAR10, CIFAR100 or FashionMNIST into data.path if it is not there, once for all ranks."""
    download_url: DownloadUrl | None = None
    """Where to fetch it instead: a mirror's address of the tar archive, or of the
    folder of FashionMNIST's files."""
    download_checksum: Checksum | None = None
    """md5:… or sha256:… of that archive; null is the checksum of its authors' archive.
    FashionMNIST's files have those of its authors."""
    image_size: int | None = Field(default=None, ge=8, le=4096)
    """Edge of the square images in pixels; null is the model's own."""
