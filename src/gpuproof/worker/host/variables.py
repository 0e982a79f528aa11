"""Which variables of a host are recorded: each that begins as those of the libraries do, by its name.

Its value is, too, where `variables.txt` lists it: documented, or read by the library itself. Any other may be
somebody's own, a secret among them, whatever its name says.

>>> recorded_variables({"NCCL_ALGO": "Ring", "NCCL_CRED": "hunter2", "HOME": "/root"})
{'NCCL_ALGO': 'Ring', 'NCCL_CRED': 'redacted'}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from gpuproof.base.files import packaged_text
from gpuproof.base.redaction import REDACTED, redacted

PREFIXES = (
    *("NCCL_", "GLOO_", "TF_", "TORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "OMP_", "MKL_", "KMP_"),
    *("ROCR_", "HIP_", "PYTORCH_"),
)


def recorded_variables(environment: Mapping[str, str], prefixes: Sequence[str] = PREFIXES) -> dict[str, str]:
    """Return the variables that begin so, by name, each with its value or with `redacted` for it."""
    return {
        name: redacted(value) if name in _documented() else REDACTED
        for name, value in sorted(environment.items())
        if name.startswith(tuple(prefixes))
    }


@cache
def _documented() -> frozenset[str]:
    text = packaged_text("worker/host/variables.txt")
    return frozenset(name for line in text.splitlines() if line[:1] != "#" for name in line.split())
