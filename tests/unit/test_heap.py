"""What a step on a processor frees stays with the process, where the allocator can be told so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuproof.accelerators.choose import find_accelerator
from gpuproof.worker.host.heap import reason_freed_memory_is_not_kept

FREE_AND_TAKE = """
import resource, sys
from gpuproof.worker.host.heap import keep_freed_memory

def take_and_free():
    blocks = [bytearray(n * 2**20) for n in (1,) * 12]
    blocks.clear()

if sys.argv[1] == "kept":
    keep_freed_memory()
take_and_free()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    take_and_free()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES_OF_A_ROUND = 12 * 2**20 // 4096


def _page_faults(how: str) -> int:
    process = subprocess.run(
        [sys.executable, "-c", FREE_AND_TAKE, how], check=True, capture_output=True, text=True
    )
    return int(process.stdout)


def test_kept_memory_is_taken_again_without_a_page_fault() -> None:
    if reason_freed_memory_is_not_kept(find_accelerator("cpu")) is None:
        assert _page_faults("kept") < PAGES_OF_A_ROUND / 10
        assert _page_faults("freed") > 3 * PAGES_OF_A_ROUND


@pytest.mark.parametrize("device_type", ["cuda", "xpu"])
def test_a_device_keeps_its_memory_in_any_case(device_type: str) -> None:
    reason = reason_freed_memory_is_not_kept(find_accelerator(device_type))
    assert reason is not None
    assert "torch keeps" in reason


def test_another_allocator_takes_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    assert "jemalloc" in (reason_freed_memory_is_not_kept(find_accelerator("cpu")) or "")
