"""scikit-learn's digits: 1,797 real 8×8 images of ten digits, which come inside its package.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998,
https://archive.ics.uci.edu/dataset/80.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuproof.errors import EnvironmentUnfitError
from gpuproof.records.tensor_file import TensorFileHeader, write_tensor_file

NUM_CLASSES = 10
GREY_LEVELS = 16


def prepare_digits(path: Path) -> TensorFileHeader:
    """Write the digits as (1797, 1, 8, 8) uint8, grey levels 0–16 stretched to 0–255; returns the header."""
    pixels, labels = _bundled()
    images = np.round(pixels * (255 / GREY_LEVELS)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return write_tensor_file(
        path,
        name="digits",
        shape=images.shape,
        num_classes=NUM_CLASSES,
        images=images.tobytes(),
        labels=labels.astype(np.uint8).tobytes(),
    )


def _bundled() -> tuple[np.ndarray, np.ndarray]:
    """Read the table inside the package without importing it: the import costs over a second."""
    from importlib.util import find_spec

    spec = find_spec("sklearn")
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz" if spec and spec.origin else None
    if file is None or not file.is_file():
        raise EnvironmentUnfitError(
            "the digits are not there: they come with scikit-learn",
            place="data.name",
            next_step="pip install scikit-learn",
        )
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1], table[:, -1]
