"""A fault planted in every Python that finds this file: on rank 1 an element of each large sum is wrong.

`CORRUPTED_SUM` names the only one that is, counted from 1.

Python imports it at its start. torch is changed as it is imported, below all of our own code.
"""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))
from planting import plant

sys.path.pop()

MODULE = "torch.distributed.distributed_c10d"
LARGE = 1000
"""Elements; what ranks agree by is smaller."""


def corrupt(module: Any) -> None:
    right, only, numbers = module.all_reduce, os.environ.get("CORRUPTED_SUM"), count(1)

    def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        done = right(tensor, *args, **kwargs)
        if tensor.numel() > LARGE and only in ("", None, str(next(numbers))):
            if done is not None:  # it is asynchronous, and would write over what is added before its end
                done.wait()
            tensor[tensor.numel() // 2] += 1
        return done

    module.all_reduce = all_reduce


if os.environ.get("RANK") == "1":
    plant(MODULE, corrupt)
