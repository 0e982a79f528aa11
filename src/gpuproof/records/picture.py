"""One image file as raw pixels: the only place that reads images with Pillow, for both halves.

The control side decodes before a run (`data.loading: device`), the loader's processes on the node while it
runs (`data.loading: loader`). Comes in: a file and the edge of a square. Goes out: RGB, row by row.
"""

from __future__ import annotations

from pathlib import Path

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.base.files import open_plain

ENDINGS = frozenset({".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def require_pillow(python: str) -> None:
    """Check that images can be decoded by this interpreter, named `python` in the error.

    Raises:
        EnvironmentUnfitError: Pillow is not installed.
    """
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise EnvironmentUnfitError(
            f"images are decoded with Pillow, which {python} does not have",
            place="data.name",
            next_step="Install it there (pip install pillow); with data.loading=device only the side that "
            "starts the run needs it",
        ) from error


def decode(file: Path, *, size: int) -> bytes:
    """Return the image scaled and cut around its centre to `size` × `size` pixels: RGB, 3 bytes a pixel.

    Raises:
        UsageError: it cannot be read as an image.
    """
    from PIL import Image, ImageOps

    try:
        with open_plain(file) as opened, Image.open(opened) as image:
            return ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR).tobytes()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(
            f"not an image that Pillow can read: {error}",
            place=str(file),
            next_step="Remove the file from the data set, or replace it",
        ) from error
