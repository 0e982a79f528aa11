"""Seeing the operators of a step go by: composite ones in their parts, and without torch's compiler."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):
    """Runs every operator, and hands each that ran to `ran`."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say no: torch would import its compiler, seconds long, to keep it from compiling this class."""
        return False

    def stays_whole(self, func: Any) -> bool:
        """Say whether an operator is to be seen as it is, though it has parts."""
        return False

    def ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Take note of an operator, its arguments and what it returned."""
        raise NotImplementedError

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, or its parts where it has some: inference mode gives composite ones whole."""
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload) and not self.stays_whole(func):
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        out = func(*args, **kwargs)
        self.ran(func, args, kwargs, out)
        return out
