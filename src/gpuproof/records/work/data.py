"""Where the samples of a model come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gpuproof.records.codec import Natural, Positive

DataLoading = Literal["device", "loader"]
DataSplit = Literal["train", "test"]
TokenType = Literal["uint16", "uint32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSpec:
    """From where a data set may be fetched if it is not at its path; None is where its authors keep it."""

    url: str | None
    checksum: str | None
    """`md5:…` or `sha256:…`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Where samples come from.

    `file` is what the control side prepared (a tensor file, a listing of images or of tokens), relative to
    the run directory; None means that samples are drawn.
    """

    name: str
    batch_size: Positive
    """Samples per rank in one micro-batch."""
    samples_per_epoch: Positive
    image_size: int | None
    file: str | None
    loader: dict[str, Any] = field(default_factory=dict)
    """The data-loader keys as the user set them; reported as not applied where no loader runs."""
    loading: DataLoading = "device"
    split: DataSplit = "train"
    held_out: float = 0.0
    """Share of the samples that no step takes."""
    path: str | None = None
    """The data set's own folder or file, as the user wrote it."""
    token_type: TokenType = "uint16"  # noqa: S105  # no secret
    download: DownloadSpec | None = None
    """None where nothing may be fetched."""


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
