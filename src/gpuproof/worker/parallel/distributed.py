"""Ranks: which device belongs to this rank, and how ranks communicate and agree.

Small decisions (such as how many steps come next) are communicated over gloo on the CPU even if gradients use
NCCL, so that reaching agreement never disturbs the device's queue. NCCL receives the settings of a
communication profile before it starts (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
No profile is guaranteed to help on any machine; an A/B comparison with interleaved launches shows whether a
profile helps on a given machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from gpuproof.accelerators.choose import PROCESSOR, accelerator_of, choose_accelerator
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.records.case import Placement
from gpuproof.records.work.parallel import Backend, CommunicationProfile, ParallelSpec
from gpuproof.worker.rank.identity import RankIdentity

NCCL = "nccl"
"""Backend that reads these variables."""
PROFILES: Mapping[CommunicationProfile, Mapping[str, str]] = {
    "none": {},
    "ring": {"NCCL_ALGO": "Ring"},
    "tree": {"NCCL_ALGO": "Tree"},
    "no_p2p": {"NCCL_P2P_DISABLE": "1"},
    "no_fabric": {"NCCL_NET": "Socket", "NCCL_MNNVL_ENABLE": "0"},
    "no_gpudirect": {"NCCL_NET_GDR_LEVEL": "LOC"},
    "pcie": {
        "NCCL_DEBUG": "INFO",
        "NCCL_ALGO": "Tree",
        "NCCL_PROTO": "Simple",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "0",
        "NCCL_NET_GDR_LEVEL": "0",
        "NCCL_BUFFSIZE": "33554432",
        "NCCL_NTHREADS": "16",
        "NCCL_MAX_NCHANNELS": "8",
        "NCCL_MIN_NCHANNELS": "4",
    },
}
"""Variables set by each profile. With `no_fabric`, hosts can use only IP sockets; with `no_gpudirect`,
network cards copy through host memory. `pcie` is the published set of variables for two GPUs that cannot copy
to each other directly, including its debug output."""


def choose_device(placement: Placement, identity: RankIdentity) -> torch.device:
    """Choose this rank's device: from the user's list, else by local rank among the visible ones.

    Raises:
        EnvironmentUnfitError: the requested type does not exist, or there are too few devices.
    """
    accelerator = choose_accelerator(placement.device)
    if accelerator is PROCESSOR and placement.devices is None:
        return torch.device("cpu")
    num_visible = 0 if accelerator is PROCESSOR else accelerator.count()
    indices = placement.devices if placement.devices is not None else tuple(range(num_visible))
    missing = [index for index in indices if index >= num_visible]
    if missing:
        variable = accelerator.visibility_variable
        shown = f" ({variable}={os.environ.get(variable, 'not set')})" if variable else ""
        raise EnvironmentUnfitError(
            f"device {missing[0]} was requested, but torch sees {num_visible}{shown}",
            place="distributed.devices",
            next_step="Count from 0, as torch does. Without distributed.devices the available "
            "devices are used; distributed.device=cpu measures the CPU",
        )
    # With srun --gpus-per-task=1, each rank sees only one device, whatever its local rank.
    local_rank = 0 if num_visible == 1 and placement.devices is None else identity.local_rank
    if local_rank >= len(indices):
        raise EnvironmentUnfitError(
            f"local rank {identity.local_rank} has no device: {len(indices)} for "
            f"{identity.local_world_size} ranks on this host",
            next_step="Start at most one rank per device, or set distributed.device=cpu",
        )
    return torch.device(accelerator.type, indices[local_rank])


class Ranks:
    """The ranks of a case, including this process; a single rank needs no process group."""

    def __init__(
        self,
        identity: RankIdentity,
        *,
        device: torch.device,
        parallel: ParallelSpec,
        store: Store | None = None,
    ) -> None:
        self.backend = _backend(parallel.backend, device) if identity.world_size > 1 else None
        if self.backend is not None:
            if self.backend == NCCL:
                apply_profile(parallel.communication_profile, os.environ)
            dist.init_process_group(
                accelerator_of(device).process_group(self.backend),
                store=PrefixStore("gpuproof", store or open_store(parallel.timeout_s)),
                rank=identity.rank,
                world_size=identity.world_size,
                timeout=timedelta(seconds=parallel.timeout_s),
            )

    def barrier(self) -> None:
        """Wait until every rank has arrived."""
        self.agree(0)

    def agree(self, proposal: int) -> int:
        """Return the smallest of the proposals from all ranks."""
        if self.backend is None:
            return proposal
        value = torch.tensor([proposal])
        dist.all_reduce(value, op=dist.ReduceOp.MIN)
        return int(value.item())

    def close(self) -> None:
        """Leave the process group. First delete the modules that use it, or the process crashes on exit."""
        if dist.is_initialized():
            dist.destroy_process_group()


def open_store(timeout_s: float, *, awaits_all: bool = True) -> Store:
    """Connect to the other ranks at MASTER_ADDR:MASTER_PORT; return the shared key-value store.

    If this process hosts the store, it may continue before the others arrive, so that a late rank can be
    reported by number.
    """
    timeout = timedelta(seconds=timeout_s)
    is_of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    if not awaits_all and os.environ.get("RANK") == "0" and not is_of_agent:
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        ranks = int(os.environ["WORLD_SIZE"])
        store: Store = dist.TCPStore(  # type: ignore[attr-defined]  # it is exported, and not declared so
            *place, ranks, True, timeout, wait_for_workers=False, multi_tenant=True
        )
        return store
    store, _rank, _world_size = next(rendezvous("env://", timeout=timeout))
    assert isinstance(store, Store)
    return store


def _backend(backend: Backend, device: torch.device) -> str:
    collectives = accelerator_of(device).collectives
    if not collectives:
        raise EnvironmentUnfitError(
            f"torch does not support collectives between {accelerator_of(device).title} devices",
            place="distributed.nproc",
            next_step="Run one rank, or set distributed.device=cpu",
        )
    if backend == "auto":
        return collectives[0]
    if backend not in collectives:
        raise EnvironmentUnfitError(
            "the nccl backend needs CUDA devices and this run is on the CPU"
            if (backend, device.type) == ("nccl", "cpu")
            else f"the {backend} backend does not transfer tensors of {accelerator_of(device).title} devices",
            place="distributed.backend",
            next_step="Set distributed.backend=auto, which uses nccl with CUDA and gloo without"
            if device.type == "cpu"
            else f"Set distributed.backend=auto, which uses {collectives[0]} here",
        )
    return backend


def apply_profile(profile: CommunicationProfile, environment: MutableMapping[str, str]) -> None:
    """Set the profile's variables in a process in which NCCL has not been initialised yet.

    Raises:
        EnvironmentUnfitError: a variable is already set to another value, so the intention is unclear.

    >>> environment = {}
    >>> apply_profile("tree", environment)
    >>> environment
    {'NCCL_ALGO': 'Tree'}
    """
    for name, value in PROFILES[profile].items():
        if environment.get(name, value) != value:
            raise EnvironmentUnfitError(
                f"{name} is {environment[name]}, but the communication profile {profile} sets {value}",
                place="distributed.communication_profile",
                next_step=f"Unset {name}, or set distributed.communication_profile=none",
            )
        environment[name] = value
