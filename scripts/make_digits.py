"""Create src/gpuproof/datasets/data/digits.npz from scikit-learn's table, and copy its licence.

    pip install scikit-learn && python scripts/make_digits.py

The same table always gives the same file, byte for byte: numpy writes no timestamps into it.
"""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parent.parent / "src" / "gpuproof" / "datasets" / "data"
SOURCE = """digits.npz holds the grey levels and labels of scikit-learn {version}'s digits.csv.gz
(sklearn/datasets/data/digits.csv.gz), made by scripts/make_digits.py. scikit-learn's licence stands below.

The table is a copy of the test set of: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits,
UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C50P49, licensed under CC BY 4.0,
https://creativecommons.org/licenses/by/4.0/. Changed: the format of the file.

--------------------------------------------------------------------------------------------------------------
"""


def main() -> int:
    """Write both files."""
    package = distribution("scikit-learn")
    table = np.loadtxt(str(package.locate_file("sklearn/datasets/data/digits.csv.gz")), delimiter=",")
    levels, labels = table[:, :-1].astype(np.uint8).reshape(-1, 8, 8), table[:, -1].astype(np.uint8)
    np.savez_compressed(TARGET / "digits.npz", levels=levels, labels=labels)
    licence = next(file for file in package.files or [] if file.name == "COPYING")
    text = SOURCE.format(version=package.version) + Path(str(licence.locate())).read_text(encoding="utf-8")
    (TARGET / "digits.LICENSE.txt").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
