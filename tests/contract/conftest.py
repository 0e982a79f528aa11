"""Fixtures of the device contract: the fake NVML library, built and loaded once a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes import nvml_library


@pytest.fixture(scope="session")
def nvml_loaded(tmp_path_factory: pytest.TempPathFactory) -> nvml_library.FakeNvml:
    """Load the fake library; while it has no answers it behaves as a host without a driver."""
    fake = nvml_library.FakeNvml(nvml_library.build(tmp_path_factory.mktemp("nvml")))
    fake.set({})
    return fake


@pytest.fixture
def nvml(nvml_loaded: nvml_library.FakeNvml) -> Iterator[nvml_library.FakeNvml]:
    """Two healthy GPUs; the test changes what it likes."""
    pytest.importorskip("pynvml")
    nvml_loaded.set({"s.gpus": 2} | nvml_library.gpu(0) | nvml_library.gpu(1))
    yield nvml_loaded
    nvml_loaded.set({})
    nvml_loaded.reload()
