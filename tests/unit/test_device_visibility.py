"""Framework indices after the visibility variables, case by case."""

from __future__ import annotations

import pytest

from gpuproof.devices.discovery import Candidate, Numbering, number
from gpuproof.records.readings import PhysicalIndex, Vendor

A, B, C = "GPU-aaaa1111-0000", "GPU-bbbb2222-0000", "GPU-bbbb3333-0000"


def _devices(vendor: Vendor, *uuids: str, names: tuple[str, ...] = ()) -> list[Candidate]:
    return [
        Candidate(
            physical_index=PhysicalIndex(place),
            vendor=vendor,
            name=names[place] if names else "GPU",
            uuid=uuid,
            mig_parent_uuid=A if uuid.startswith("MIG-") else None,
            static={"mig_gpu_instance_id": 1, "mig_compute_instance_id": place} if "MIG" in uuid else {},
        )
        for place, uuid in enumerate(uuids)
    ]


def _order(numbering: Numbering) -> list[int]:
    """List physical indices in the framework's order."""
    return [physical for physical, _ in sorted(numbering.indices.items(), key=lambda pair: pair[1])]


@pytest.mark.parametrize(
    ("value", "order"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [0]),
        ("1,7,0", [1]),
        ("0,0", []),
        (A, [0]),
        (f"{C},{A}", [2, 0]),
        ("GPU-aaaa", [0]),
        ("GPU-bbbb2", [1]),
        ("GPU-bbbb", []),  # names two
        ("GPU-cccc,0", []),
        ("none", []),
    ],
)
def test_cuda_visible_devices(value: str | None, order: list[int]) -> None:
    env = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}

    numbering = number(_devices("nvidia", A, B, C), env)

    assert _order(numbering) == order
    assert numbering.reasons.keys() == {0, 1, 2} - set(order)
    assert all(value is not None and value in reason for reason in numbering.reasons.values())


@pytest.mark.parametrize(
    ("env", "order"),
    [
        ({}, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, []),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0, 1]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": B}, [1]),
    ],
)
def test_unlike_gpus_have_a_number_only_where_the_order_is_known(
    env: dict[str, str], order: list[int]
) -> None:
    numbering = number(_devices("nvidia", A, B, names=("Fast", "Slow")), env)

    assert _order(numbering) == order
    if not order:
        assert all("CUDA_DEVICE_ORDER=PCI_BUS_ID" in reason for reason in numbering.reasons.values())


@pytest.mark.parametrize(
    ("value", "order"),
    [
        ("MIG-2222", [2]),
        ("MIG-1111,MIG-2222", [1, 2]),
        (f"MIG-{A}/1/2", [2]),
        (f"MIG-{A}/1/9", []),
        ("0", []),
    ],
)
def test_mig_instances(value: str, order: list[int]) -> None:
    numbering = number(_devices("nvidia", A, "MIG-1111-a", "MIG-2222-a"), {"CUDA_VISIBLE_DEVICES": value})

    assert _order(numbering) == order


@pytest.mark.parametrize(
    ("env", "order"),
    [
        ({}, [0, 1, 2]),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"ROCR_VISIBLE_DEVICES": f"{B}"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "2,0", "HIP_VISIBLE_DEVICES": "1"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "2"}, [0]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_rocm(env: dict[str, str], order: list[int]) -> None:
    numbering = number(_devices("amd", A, B, C), env)

    assert _order(numbering) == order
    for reason in numbering.reasons.values():
        assert all(
            f"{name}={value}" in reason for name, value in env.items() if name != "CUDA_VISIBLE_DEVICES"
        )


def test_rocm_counts_in_the_order_of_its_own_nodes() -> None:
    devices = [
        Candidate(
            physical_index=PhysicalIndex(place),
            vendor="amd",
            name="GPU",
            uuid=uuid,
            mig_parent_uuid=None,
            static={"kfd_node": node},
        )
        for place, (uuid, node) in enumerate([(A, 3), (B, 1), (C, 2)])
    ]

    assert _order(number(devices, {})) == [1, 2, 0]


def test_each_vendor_counts_for_itself_and_intel_not_at_all() -> None:
    vendors: tuple[Vendor, ...] = ("nvidia", "amd", "intel", "nvidia")
    devices = [
        Candidate(
            physical_index=PhysicalIndex(place),
            vendor=vendor,
            name="GPU",
            uuid=None,
            mig_parent_uuid=None,
            static={},
        )
        for place, vendor in enumerate(vendors)
    ]

    numbering = number(devices, {})

    assert numbering.indices == {0: 0, 1: 0, 3: 1}
    assert numbering.reasons == {2: "no framework index is defined for this vendor"}
