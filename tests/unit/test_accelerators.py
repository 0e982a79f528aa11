"""Types of device: which one `auto` takes, how another package's comes in, and what a device lacks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpuproof.accelerators import choose
from gpuproof.accelerators.base import Accelerator
from gpuproof.accelerators.choose import (
    IN_ORDER,
    OWN,
    PROCESSOR,
    CudaAccelerator,
    accelerator_of,
    accelerators_here,
    choose_accelerator,
    find_accelerator,
)
from gpuproof.base import registry
from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.doctor.plugins import list_plugins
from gpuproof.records.case import OWN_DEVICE_TYPES, Placement
from gpuproof.worker.host import environment
from gpuproof.worker.parallel.distributed import Ranks, choose_device
from gpuproof.worker.rank.identity import RankIdentity
from records_by_hand import PARALLEL

ELSEWHERE = """
from gpuproof.accelerators.base import Accelerator

class Toy(Accelerator):
    type = "toy"
    title = "Toy"
    simulated = True

    def count(self):
        return 2

class Misnamed(Toy):
    pass
"""
ENTRIES = (
    "[gpuproof.accelerators]\ntoy = toy_devices:Toy\nother = toy_devices:Misnamed\ngone = no_such:Thing\n"
)


@pytest.fixture
def _toy_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package with devices of its own."""
    info = tmp_path / "toy_devices-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-devices\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "toy_devices.py").write_text(ELSEWHERE)
    monkeypatch.syspath_prepend(tmp_path)
    registry.forget()
    find_accelerator.cache_clear()
    yield
    sys.modules.pop("toy_devices", None)
    monkeypatch.undo()
    registry.forget()
    find_accelerator.cache_clear()


def identity(local_rank: int) -> RankIdentity:
    return RankIdentity(rank=local_rank, world_size=2, local_rank=local_rank, local_world_size=2)


def test_the_control_side_knows_our_own_types_by_name() -> None:
    assert tuple(OWN) == OWN_DEVICE_TYPES


@pytest.mark.promise("S1.21", "S1.26")
def test_nccl_without_cuda_says_what_to_set() -> None:
    with pytest.raises(
        EnvironmentUnfitError, match=r"Set distributed\.backend=auto, .*gloo without"
    ) as caught:
        Ranks(identity(0), device=torch.device("cpu"), parallel=replace(PARALLEL, backend="nccl"))
    assert caught.value.place == "distributed.backend"


def test_auto_takes_the_first_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    _, xpu, mps = IN_ORDER
    assert choose_accelerator("auto") is PROCESSOR
    monkeypatch.setattr(type(mps), "count", lambda _: 1)
    assert choose_accelerator("auto") is mps
    monkeypatch.setattr(type(xpu), "count", lambda _: 1)
    assert choose_accelerator("auto") is xpu
    assert accelerators_here() == (xpu, mps)


@pytest.mark.parametrize(("name", "title"), [("cuda", "CUDA"), ("xpu", "Intel XPU"), ("mps", "Apple MPS")])
def test_what_is_not_there_is_refused_by_its_name(name: str, title: str) -> None:
    with pytest.raises(EnvironmentUnfitError, match=f"^no {title} device: torch .* sees none"):
        choose_accelerator(name)


def test_devices_that_are_named_are_not_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "IN_ORDER", ())
    assert choose_device(Placement(), identity(0)).type == "cpu"
    with pytest.raises(
        EnvironmentUnfitError, match=r"distributed\.devices: device 0 was requested, .* sees 0"
    ):
        choose_device(Placement(devices=(0, 5)), identity(0))


@pytest.mark.usefixtures("_toy_package")
def test_another_package_s_devices_are_used_by_name_and_never_by_auto(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert choose_accelerator("auto") is PROCESSOR
    assert "toy_devices" not in sys.modules
    toy = choose_accelerator("toy")
    assert (toy.type, toy.simulated, toy.asynchronous) == ("toy", True, True)
    assert accelerators_here("toy") == (toy,)
    assert accelerators_here() == ()
    made: list[tuple[str, int]] = []
    monkeypatch.setattr(torch, "device", lambda kind, index: made.append((kind, index)))
    choose_device(Placement(device="toy"), identity(1))
    assert made == [("toy", 1)]


@pytest.mark.usefixtures("_toy_package")
def test_a_type_that_cannot_be_used_is_an_error_in_words() -> None:
    with pytest.raises(UsageError, match="toy-devices registers 'other', but torch calls it 'toy'"):
        find_accelerator("other")
    with pytest.raises(UsageError, match="'gone' from toy-devices cannot be loaded: ModuleNotFoundError"):
        find_accelerator("gone")
    with pytest.raises(EnvironmentUnfitError, match="no installed package provides the device type 'else'"):
        find_accelerator("else")


@pytest.mark.usefixtures("_toy_package")
def test_plug_ins_are_listed_and_looked_for_without_torch_s_half() -> None:
    (toy,) = list_plugins(name="toy", load_plugins=True)
    assert (toy.kind, toy.state, toy.distribution) == ("accelerator", "loads", "toy-devices")
    assert "toy_devices" not in sys.modules
    (gone,) = list_plugins(name="gone", load_plugins=True)
    assert gone.state == "broken"
    assert "no_such does not exist" in (gone.reason or "")


def test_a_processor_answers_for_what_it_lacks() -> None:
    cpu = torch.device("cpu")
    accelerator = accelerator_of(cpu)
    assert accelerator.why_no_graphs() == "CUDA graphs are for CUDA devices, and this run is on the CPU"
    assert accelerator.peak_memory_bytes(cpu) == (None, None)
    assert accelerator.free_and_total_bytes(cpu) is None
    assert accelerator.properties(cpu).uuid is None
    assert accelerator.arithmetic(cpu).has_bf16
    accelerator.forget_peak_memory(cpu)
    accelerator.synchronize(cpu)


def test_random_numbers_are_as_before_after_work_in_between() -> None:
    cpu = torch.device("cpu")
    before = torch.random.get_rng_state()
    with accelerator_of(cpu).kept_random_state(cpu):
        torch.rand(3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_device_module_that_lacks_a_part_is_answered_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As MPS does: one device, no peaks, no properties."""

    class Bare(Accelerator):
        type = "bare"
        title = "Bare"

    class Module:
        @staticmethod
        def is_available() -> bool:
            return True

        @staticmethod
        def device_count() -> int:
            return 1

    monkeypatch.setattr(torch, "bare", Module, raising=False)
    bare, device = Bare(), torch.device("cpu")
    assert bare.count() == 1
    assert bare.peak_memory_bytes(device) == (None, None)
    assert bare.properties(device).name == "Bare"
    assert not bare.has_events()
    assert bare.why_no_graphs() == f"torch {torch.__version__} does not capture graphs on Bare devices"


def test_a_gpu_has_one_spelling_for_ranks_and_for_the_facts_of_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch writes no `GPU-` before the number, NVML does: a validation of an H200 once counted two GPUs."""
    answer = SimpleNamespace(
        name="NVIDIA H200", uuid="f8fd7c37", total_memory=1, major=9, minor=0, multi_processor_count=132
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: answer)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    cuda = CudaAccelerator()
    facts = environment._device(cuda, 0)
    assert facts["uuid"] == cuda.properties(torch.device("cuda", 0)).uuid == "GPU-f8fd7c37"
