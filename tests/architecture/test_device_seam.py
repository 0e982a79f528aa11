"""One seam to devices: no file but those of `accelerators` names a vendor's module of torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "gpuproof"
MODULES = {"cuda", "xpu", "mps", "hip", "cudnn"}
SEAM = "accelerators/"


def vendor_modules(text: str) -> Iterator[str]:
    """Yield each `torch.cuda`, `torch.backends.cudnn` and their like, imported or named."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in MODULES:
            name = ast.unparse(node)
            if name.startswith("torch.") and name not in ("torch.version.cuda", "torch.version.hip"):
                yield name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            named = {*(node.module or "").split("."), *(alias.name for alias in node.names)}
            yield from named & MODULES


def types_in_quotes(text: str) -> Iterator[str]:
    """Yield comparisons with, and choices among, a vendor's type of device: `device.type == "cuda"`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            values = {
                part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)
            }
            yield from map(str, values & {"cuda", "xpu", "mps"})


def breaking(files: dict[str, str]) -> set[str]:
    return {
        path
        for path, text in files.items()
        if not path.startswith(SEAM) and (any(vendor_modules(text)) or any(types_in_quotes(text)))
    }


def test_no_other_file_names_a_vendors_module() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    assert breaking(files) == set()


def test_a_planted_violation_is_found() -> None:
    planted = {
        "worker/a.py": "import torch\ntorch.cuda.synchronize()\n",
        "worker/b.py": "from torch import xpu\n",
        "worker/c.py": "from torch.backends import cudnn\n",
        "worker/d.py": "is_gpu = device.type == 'cuda'\n",
        "worker/e.py": "import torch\nprint(torch.version.cuda)\n",
        "accelerators/f.py": "import torch\ntorch.mps.synchronize()\n",
    }
    assert breaking(planted) == {"worker/a.py", "worker/b.py", "worker/c.py", "worker/d.py"}
