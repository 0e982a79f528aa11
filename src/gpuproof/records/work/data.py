"""`data`, `model`, `inference`: where samples come from, which model runs, how inference runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from gpuproof.records.codec import Natural
from gpuproof.records.work.options import MAX_TOKENS, Limits, Options, Text
from gpuproof.records.work.training import Graphs, Weights

DataLoading = Literal["device", "loader"]
DataSplit = Literal["train", "test"]
TokenType = Literal["uint16", "uint32"]
LOADER_KEYS = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers")


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

DownloadUrl = Annotated[str, Limits(pattern=r"^https?://[^\s]+$", max_length=4096, form="web-address")]
Checksum = Annotated[str, Limits(pattern=r"^(md5:[0-9a-fA-F]{32}|sha256:[0-9a-fA-F]{64})$", form="checksum")]
OWN_MODULE = "python:"
"""Prefixes of model names that refer to a user's own modules."""
InferenceMode = Literal["throughput", "latency"]
InferencePhase = Literal["forward", "prefill", "decode"]


def _canonical_dataset(name: Any) -> Any:
    return _DATASETS.get(name.casefold(), name) if isinstance(name, str) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec(Options):
    """Where the samples come from."""

    name: Annotated[DatasetName, Limits(read=_canonical_dataset)] = "synthetic"
    """Name of the data set, in upper or lower case. synthetic is generated; digits is included in gpuproof;
    CIFAR10, CIFAR100, FashionMNIST, ImageFolder (one folder of images per class) and tokens (for a language
    model) are read from data.path."""
    path: Text | None = None
    """Location of the data set. For CIFAR, the folder that contains cifar-100-python or cifar-10-batches-py;
    for FashionMNIST, the folder that contains fashion-mnist with the four .gz files; for ImageFolder, the
    folder with train/CLASS/*.jpg and test/ or val/; for tokens, the file of ids (no header, little endian,
    cut into sequences of the model's length plus one)."""
    batch_size: Annotated[int, Limits(ge=1, le=2**20)] = 256
    """Samples per rank in one micro-batch."""
    num_workers: Annotated[int, Limits(ge=0, le=1024)] = 8
    """Processes per rank that load data; 0 loads the data within the step."""
    pin_memory: bool = True
    """Load into page-locked memory, from which copies to a GPU are faster."""
    prefetch_factor: Annotated[int, Limits(ge=1, le=1024)] | None = 4
    """Batches that each loading process prefetches; null means 2, as in torch."""
    persistent_workers: bool = True
    """Keep the loading processes running between epochs; false restarts them for each epoch."""
    samples_per_epoch: Annotated[int, Limits(ge=1, le=10**9)] = 10_000
    """Number of samples that count as one epoch of the endless synthetic stream."""
    loading: DataLoading = "device"
    """How samples reach the device. device places a pool of samples on the device before the window, so that
    only compute is measured. loader runs a torch DataLoader alongside the steps: each step copies its batch,
    and the time that steps spend waiting for batches is reported. The last, partial batch of an epoch is
    always dropped."""
    split: DataSplit = "train"
    """The part of the data set, if it has parts (CIFAR, FashionMNIST, ImageFolder)."""
    held_out: Annotated[float, Limits(ge=0, lt=1)] = 0.0
    """Fraction of the digits, CIFAR or FashionMNIST images that steps never use, always the same images for
    any seed; benchmark.evaluate_after, which is required, evaluates on these images as well; not with
    data.loading=loader."""
    token_type: TokenType = "uint16"  # noqa: S105  # tokens of text
    """How the tokens file stores an id: as uint16 or uint32, little endian."""
    download: bool = False
    """Download CIFAR10, CIFAR100 or FashionMNIST to data.path if it is missing, once for all ranks."""
    download_url: DownloadUrl | None = None
    """Alternative download URL: a mirror of the tar archive or, for FashionMNIST, of the folder with its
    files."""
    download_checksum: Checksum | None = None
    """md5:… or sha256:… of that archive; null uses the checksum of the original archive. FashionMNIST's files
    are always checked against the original checksums."""
    image_size: Annotated[int, Limits(ge=8, le=4096)] | None = None
    """Edge length of the square images in pixels; null uses the model's own size."""

    @property
    def loader(self) -> dict[str, Any]:
        """Arguments for the DataLoader, by name."""
        return {key: getattr(self, key) for key in LOADER_KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataUsed:
    """Which samples were used, and how they reached the device."""

    loading: Literal["device", "loader"]
    """`device`: all samples were on the device before the window; `loader`: a DataLoader produced them while
    the steps ran."""
    split: str | None
    """Part of the data set; None if the data set has no parts."""
    source: str | None
    """The folder or file that the samples come from; None if they are generated or included in a package."""
    num_samples: Natural | None
    """Number of samples in the whole data set, over all ranks; None for an endless stream."""
    sha256: str | None
    sha256_of: str | None
    """Data covered by the checksum; None if there is no file."""
    batches_ahead: Natural
    """Number of this rank's batches that the loader may have ready when the window starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Options):
    """The model that is trained or run."""

    name: Text = "resnet50"
    """The registered name of a workload; torchvision/NAME, timm/NAME or transformers/TYPE for a library's
    model with random weights; or python:package.module:Class for your own module."""
    num_classes: Annotated[int, Limits(ge=2, le=10**6)] | None = None
    """Number of classes; null uses the model's default."""
    channels_last: bool = True
    """Store images as NHWC in memory (GPUs only)."""
    options: dict[str, Any] = field(default_factory=dict)
    """The workload's own options, checked by the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSpec(Options):
    """How inference runs."""

    mode: InferenceMode = "throughput"
    """throughput queues steps without waiting for them; latency waits for each step and times it alone."""
    phase: InferencePhase = "forward"
    """forward runs whole samples; prefill reads prompts into a key-value cache; decode generates one token
    per step from that cache."""
    prompt_tokens: Annotated[int, Limits(ge=1, le=MAX_TOKENS)] = 512
    """Tokens per prompt, for prefill and decode."""
    new_tokens: Annotated[int, Limits(ge=1, le=MAX_TOKENS)] = 128
    """Tokens that decode generates, one per step, before the cache is reset to the prompt."""
    weights: Weights = "precision"
    """How weights are stored: in the type of training.precision, as in deployment (fp8: quantised once), or
    in fp32, cast in each step by autocast. Your own modules stay in fp32."""
    cuda_graphs: Graphs = "auto"
    """Whether cache-based workloads (prefill, decode, serving of text) replay CUDA graphs, one for each
    bucket of 64 tokens; auto does so if the device can. The forward phase uses training.cuda_graphs."""
