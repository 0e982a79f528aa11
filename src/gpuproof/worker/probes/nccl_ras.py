"""What does NCCL report about a running job? Query its RAS service as NVIDIA's `ncclras` client does.

The service is a socket in each NCCL process
(https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html); its protocol lines and
JSON names match NCCL's src/ras/client.cc and client_support.cc. Our ranks have completed an all-reduce over
all ranks before the service is queried, so if NCCL reports a rank as missing, it contradicts that all-reduce.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from gpuproof.base.outside import parse_json
from gpuproof.records.work.probe import RAS_FAULTS, NcclRasSpec, ProbeReading
from gpuproof.worker.rank.bench import Bench

ADDRESS, VARIABLE = "localhost:28028", "NCCL_RAS_ADDR"
GREETING, SERVER = "CLIENT PROTOCOL 2", "SERVER PROTOCOL "
SPARE_S = 10.0
"""Timeouts: NCCL gives up on its own ranks before we give up on NCCL."""
NO_ERROR = (0, 7)
"""Codes of ncclSuccess and ncclInProgress."""
TOO_OLD = "this NCCL's RAS supports only text output: {!r}"


def ask_nccl_ras(spec: NcclRasSpec, bench: Bench) -> Iterator[ProbeReading]:
    """After a global all-reduce, yield on rank 0 how many ranks NCCL reports as missing or failed."""
    is_nccl = bench.ranks.backend == "nccl"
    if is_nccl:
        dist.all_reduce(torch.ones(1, device=bench.device))
        bench.ranks.barrier()
    if bench.identity.rank == 0:
        reason = (
            None
            if is_nccl
            else f"the ranks communicate over {bench.ranks.backend or 'nothing'}, not over NCCL"
        )
        status: Mapping[str, Any] = {}
        try:
            address = os.environ.get(VARIABLE, ADDRESS)
            status = {} if reason else ras_status(address, timeout_s=spec.time_limit_s)
        except (OSError, ValueError) as error:
            reason = f"NCCL's RAS (2.24 or newer, on by default) did not respond: {error}"
        yield value_of(status, reason, num_ranks=bench.identity.world_size)
    bench.count_one()
    bench.ranks.barrier()


def value_of(status: Mapping[str, Any], reason: str | None, *, num_ranks: int) -> ProbeReading:
    """Return the number of faults, with our own rank count for comparison, or why there is none."""
    faults, sizes = list(ras_faults(status)), [one.get("size") for one in status.get("communicators") or ()]
    compared = f"NCCL {status.get('nccl_version')}: communicators of {sizes} ranks; our {num_ranks}"
    return ProbeReading(
        rank=0,
        quantity=RAS_FAULTS,
        unit="1",
        value=None if reason else float(len(faults)),
        missing=reason,
        is_inapplicable=reason is not None,
        evidence=() if reason else (*faults, f"{compared} finished an all-reduce"),
        is_of_host=True,
    )


def ras_status(address: str, *, timeout_s: float) -> Mapping[str, Any]:
    """Query a RAS service for the state of its job.

    Raises:
        OSError: nothing listens at this address, or the service does not answer in time.
        ValueError: the response is not from a RAS service, or is not JSON (NCCL before 2.28).
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s + SPARE_S) as connection:
        stream = connection.makefile("rw", encoding="utf-8", errors="replace", newline="\n")
        if not (answer := _request(stream, GREETING)).startswith(SERVER):
            raise ValueError(f"{address} is not an NCCL RAS service: {answer!r}")
        for line in (f"TIMEOUT {round(timeout_s)}", "SET FORMAT json"):
            if (answer := _request(stream, line)) != "OK":
                raise ValueError(TOO_OLD.format(answer))
        stream.write("VERBOSE STATUS\n")
        stream.flush()
        status = parse_json(stream.read())
    if not isinstance(status, dict):
        raise ValueError(f"{address} did not respond with a status")
    return status


def _request(stream: Any, line: str) -> str:
    stream.write(f"{line}\n")
    stream.flush()
    return str(stream.readline()).strip()


def ras_faults(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield each rank that NCCL reports as missing or failed, or that has an aborted communicator."""
    for communicator in status.get("communicators") or ():
        for rank in (*communicator.get("missing_ranks", ()), *communicator.get("ranks", ())):
            state = rank.get("status") or {}
            words = [word for word in ("considered_dead", "unresponsive", "abort_flag") if state.get(word)]
            words += ["missing"] if "async_error" not in state and not words else []
            if state.get("async_error", 0) not in NO_ERROR:
                words.append(f"ncclResult_t {state['async_error']}")
            if words:
                yield f"rank {rank['rank']} on {rank['host']} (process {rank['pid']}): {', '.join(words)}"
