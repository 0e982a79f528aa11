"""Which keys of `serving` cannot hold together, or not with the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.contradiction import Contradiction

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


def serving_can_be_judged(config: RunConfig) -> Contradiction | None:
    """Ask for a bound where the highest rate is searched."""
    serving = config.serving
    searches = serving.scenario == "server" and serving.rate_per_s is None
    if config.kind != "serving" or not searches or serving.latency_bound_s is not None:
        return None
    return Contradiction(
        keys=("serving.rate_per_s", "serving.latency_bound_s"),
        cause="the highest rate under a latency bound is asked for, but serving.latency_bound_s is null",
        next_step="Set serving.latency_bound_s, or the rate itself",
    )


def endpoint_has_an_address(config: RunConfig) -> Contradiction | None:
    """Ask for an address and a model where an endpoint is loaded."""
    endpoint = config.serving.endpoint
    if config.kind != "serving" or config.serving.target != "endpoint":
        return None
    missing = next((key for key in ("url", "model") if getattr(endpoint, key) is None), None)
    if missing is None:
        return None
    return Contradiction(
        keys=(f"serving.endpoint.{missing}", "serving.target"),
        cause=f"an endpoint is to be loaded, but serving.endpoint.{missing} is null",
        next_step=f"Set serving.endpoint.{missing}",
    )


def a_request_fits_a_batch(config: RunConfig) -> Contradiction | None:
    """Refuse requests that no batch holds."""
    serving = config.serving
    if config.kind != "serving" or serving.samples_per_request <= serving.max_batch:
        return None
    return Contradiction(
        keys=("serving.max_batch", "serving.samples_per_request"),
        cause=f"a request brings {serving.samples_per_request} samples, a batch holds {serving.max_batch}",
        next_step=f"Set serving.max_batch to {serving.samples_per_request} or more",
    )


def one_rank_serves(config: RunConfig) -> Contradiction | None:
    """Refuse more than one rank."""
    if config.kind != "serving" or config.distributed.nproc == 1:
        return None
    return Contradiction(
        keys=("distributed.nproc", "kind"),
        cause=f"{config.distributed.nproc} ranks are asked for, but one rank serves",
        next_step="Set distributed.nproc to 1",
    )
