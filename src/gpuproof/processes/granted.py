"""How many GPUs did a scheduler grant here? As Slurm says it, or whoever made the pod or started the gate.

>>> granted_gpus({"SLURM_JOB_GPUS": "0,1"})
{'number': 2, 'source': 'SLURM_JOB_GPUS=0,1'}
>>> granted_gpus({"GPUPROOF_GRANTED_GPUS": "8 nvidia.com/gpu of the pod"})
{'number': 8, 'source': 'nvidia.com/gpu of the pod'}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

GRANTED: Final = "GPUPROOF_GRANTED_GPUS"
"""Where neither Slurm nor the driver says it: the number, and after a space who granted it."""
OF_SLURM: Final = ("SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS")
"""Of a step before those of its job (https://slurm.schedmd.com/srun.html, prolog_epilog.html): of these
SLURM_GPUS_ON_NODE is a number, the others are lists of indices."""


def granted_gpus(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the `number` of GPUs that were granted on this host and the `source`; None where none were."""
    number, _, source = environment.get(GRANTED, "").partition(" ")
    if number.isdecimal() and int(number):
        return {"number": int(number), "source": source or f"{GRANTED}={number}"}
    for name in OF_SLURM:
        text = environment.get(name, "").strip()
        count = (
            _number(text)
            if name == "SLURM_GPUS_ON_NODE"
            else sum(map(_length, filter(None, text.split(","))))
        )
        if count:
            return {"number": count, "source": f"{name}={text}"}
    return None


def grant_for_later(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that tells ranks of the grant where Slurm's own variables are taken away.

    >>> grant_for_later({"SLURM_JOB_GPUS": "0,1"})
    {'GPUPROOF_GRANTED_GPUS': '2 SLURM_JOB_GPUS=0,1'}
    """
    grant = granted_gpus(environment)
    return {} if grant is None else {GRANTED: f"{grant['number']} {grant['source']}"}


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _length(entry: str) -> int:
    """Count what one entry of a list names: `0-3` is four."""
    ends = re.fullmatch(r"(\d+)-(\d+)", entry.strip())
    return 1 if ends is None else max(1, int(ends[2]) - int(ends[1]) + 1)
