"""Fixtures of the device contract: the fake vendor libraries, built and loaded once a session."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes import amdsmi_library, nvml_library, sysfs_trees


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


@pytest.fixture(scope="session")
def amdsmi_loaded(tmp_path_factory: pytest.TempPathFactory) -> amdsmi_library.FakeAmdSmi:
    """Load the fake library into the real package; without answers there is no driver."""
    root = tmp_path_factory.mktemp("rocm")
    library = amdsmi_library.build(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ROCM_HOME", raising=False)
        patch.setenv("ROCM_PATH", str(root))
        for name in [name for name in sys.modules if name.partition(".")[0] == "amdsmi"]:
            patch.delitem(sys.modules, name)  # a real library that another test may have found
        importlib.import_module("amdsmi")
    return amdsmi_library.FakeAmdSmi(library)


@pytest.fixture
def amdsmi(amdsmi_loaded: amdsmi_library.FakeAmdSmi) -> Iterator[amdsmi_library.FakeAmdSmi]:
    """Two healthy cards, on PCI buses 0x83 and 5; the test changes what it likes."""
    amdsmi_loaded.set({"s.gpus": 2} | amdsmi_library.gpu(0, bus=0x83) | amdsmi_library.gpu(1, bus=5))
    yield amdsmi_loaded
    amdsmi_loaded.reset()


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A root of /sys with one AMD card, card 4 at 0000:83:00.0, that has no file but its address."""
    sysfs_trees.card(tmp_path, 4, "amdgpu", "0000:83:00.0")
    return tmp_path
