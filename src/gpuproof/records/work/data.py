"""`data`, `model`, `inference`: where samples come from, what is run, and how it is run forward."""

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
"""What names of models begin with that are modules of the user's."""
InferenceMode = Literal["throughput", "latency"]
InferencePhase = Literal["forward", "prefill", "decode"]


def _canonical_dataset(name: Any) -> Any:
    return _DATASETS.get(name.casefold(), name) if isinstance(name, str) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec(Options):
    """Where the samples come from."""

    name: Annotated[DatasetName, Limits(read=_canonical_dataset)] = "synthetic"
    """The data set, upper or lower case. synthetic is drawn; digits come with gpuproof; CIFAR10, CIFAR100,
    FashionMNIST, ImageFolder (a folder of images a class) and tokens (for a language model) are at
    data.path."""
    path: Text | None = None
    """Where the data set is: the folder that holds CIFAR's own folder (cifar-100-python or
    cifar-10-batches-py), or fashion-mnist with the four .gz files of FashionMNIST; the folder with
    train/CLASS/*.jpg and test/ or val/ for ImageFolder; the file of ids for tokens (no header, little
    endian, cut into sequences of the model's length plus one)."""
    batch_size: Annotated[int, Limits(ge=1, le=2**20)] = 256
    """Samples per rank in one micro-batch."""
    num_workers: Annotated[int, Limits(ge=0, le=1024)] = 8
    """Processes per rank that load data; 0 loads inside the step."""
    pin_memory: bool = True
    """Load into page-locked memory, which copies faster to a GPU."""
    prefetch_factor: Annotated[int, Limits(ge=1, le=1024)] | None = 4
    """Batches that each loading process keeps ready."""
    persistent_workers: bool = True
    """Keep the loading processes from epoch to epoch; false starts them anew each time."""
    samples_per_epoch: Annotated[int, Limits(ge=1, le=10**9)] = 10_000
    """Samples that one epoch of the endless synthetic stream counts."""
    loading: DataLoading = "device"
    """How samples come to the device: device has a pool of them there before the window, so that compute
    alone is measured; loader runs a torch DataLoader beside the steps, which copy each batch, and says how
    long they waited for it. The last, partial batch of an epoch is always dropped."""
    split: DataSplit = "train"
    """The part of the data set, where it has parts (CIFAR, FashionMNIST, ImageFolder)."""
    held_out: Annotated[float, Limits(ge=0, lt=1)] = 0.0
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
    image_size: Annotated[int, Limits(ge=8, le=4096)] | None = None
    """Edge of the square images in pixels; null is the model's own."""

    @property
    def loader(self) -> dict[str, Any]:
        """What a DataLoader is asked, by key."""
        return {key: getattr(self, key) for key in LOADER_KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataUsed:
    """Which samples were used, and how they came to the device."""

    loading: Literal["device", "loader"]
    """`device`: all there before the window; `loader`: made by a DataLoader while the steps run."""
    split: str | None
    """None where the set has no parts."""
    source: str | None
    """The folder or file that they are from; None where they are drawn or come with a package."""
    num_samples: Natural | None
    """In the whole set, all ranks together; None of an endless stream."""
    sha256: str | None
    sha256_of: str | None
    """What the checksum is of; None where there is no file."""
    batches_ahead: Natural
    """Batches of this rank that the loader may have ready when the window begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Options):
    """What is trained or run."""

    name: Text = "resnet50"
    """The registered name of a workload; torchvision/NAME, timm/NAME or transformers/TYPE, a library's model
    with random weights; or python:package.module:Class, a module of your own."""
    num_classes: Annotated[int, Limits(ge=2, le=10**6)] | None = None
    """Number of classes; null is the model's default."""
    channels_last: bool = True
    """Lay images out as NHWC in memory (CUDA only)."""
    options: dict[str, Any] = field(default_factory=dict)
    """The workload's own options, checked by the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSpec(Options):
    """How a model is run forward."""

    mode: InferenceMode = "throughput"
    """throughput queues steps and waits for none; latency waits for each and times it alone."""
    phase: InferencePhase = "forward"
    """forward runs whole samples; prefill reads prompts into a key-value cache; decode makes one token a step
    from it."""
    prompt_tokens: Annotated[int, Limits(ge=1, le=MAX_TOKENS)] = 512
    """Tokens of each prompt, for prefill and decode."""
    new_tokens: Annotated[int, Limits(ge=1, le=MAX_TOKENS)] = 128
    """Tokens that decode makes, a step each, before the cache goes back to the prompt."""
    weights: Weights = "precision"
    """How weights are stored: in the type of training.precision, as models are deployed (fp8: quantised
    once), or in fp32, cast in each step by autocast. A module of your own keeps fp32."""
    cuda_graphs: Graphs = "auto"
    """Whether what works on a cache (prefill, decode, serving of text) replays CUDA graphs, one for each
    bucket of 64 tokens; auto does where the device can. The forward phase goes by training.cuda_graphs."""
