"""Tolerations mean what they mean in a pod's spec, and what Kubernetes refuses is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gpuproof.launchers.kubernetes.options import Toleration


def test_a_value_is_compared_and_without_one_the_key_is_enough() -> None:
    assert Toleration.model_validate({"key": "dedicated", "value": "gpu"}).operator == "Equal"
    assert Toleration.model_validate({"key": "dedicated"}).operator == "Exists"


@pytest.mark.parametrize("rule", [{"operator": "Exists", "key": "a", "value": "b"}, {"value": "b"}])
def test_what_kubernetes_refuses_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Toleration.model_validate(rule)
