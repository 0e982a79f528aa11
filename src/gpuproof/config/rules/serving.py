"""Which keys of `serving` cannot hold together, or not with the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuproof.config.rules.refusal import Contradiction

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


def serving_can_be_judged(config: RunConfig) -> Contradiction | None:
    """Ask for a bound where the highest rate is searched."""
    serving = config.serving
    searches = serving.scenario == "server" and serving.rate_per_s is None
    if config.kind != "serving" or not searches or serving.latency_bound_s is not None:
        return None
    return Contradiction(
        keys=("serving.rate_per_s", "serving.latency_bound_s", "kind"),
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
        keys=(f"serving.endpoint.{missing}", "serving.target", "kind"),
        cause=f"an endpoint is to be loaded, but serving.endpoint.{missing} is null",
        next_step=f"Set serving.endpoint.{missing}",
    )


def a_request_fits_a_batch(config: RunConfig) -> Contradiction | None:
    """Refuse requests that no batch holds."""
    serving = config.serving
    if config.kind != "serving" or serving.samples_per_request <= serving.max_batch:
        return None
    return Contradiction(
        keys=("serving.max_batch", "serving.samples_per_request", "kind"),
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


def prompts_are_answered(config: RunConfig) -> Contradiction | None:
    """Refuse tokens where none can be made, and none where they must be."""
    serving = config.serving
    if config.kind != "serving":
        return None
    asked = next((key for key in ("new_tokens", "prompt_tokens") if getattr(serving, key)), None)
    if serving.target == "noop" and asked is not None:
        return Contradiction(
            keys=(f"serving.{asked}", "serving.target", "kind"),
            cause="noop answers at once and makes no tokens",
            next_step=f"Remove serving.{asked}, or set serving.target to model",
        )
    if serving.target == "endpoint" and serving.new_tokens == 0:
        return Contradiction(
            keys=("serving.new_tokens", "serving.target", "kind"),
            cause="an endpoint is asked for tokens, and serving.new_tokens is 0",
            next_step="Set serving.new_tokens to 1 or more",
        )
    if serving.target == "model" and serving.new_tokens == 0 and serving.prompt_tokens is not None:
        return Contradiction(
            keys=("serving.prompt_tokens", "serving.new_tokens", "kind"),
            cause="serving.new_tokens is 0: whole samples are run forward, and no prompt is read",
            next_step="Remove serving.prompt_tokens, or set serving.new_tokens to 1 or more",
        )
    return None


def an_endpoint_gets_single_prompts(config: RunConfig) -> Contradiction | None:
    """Refuse several samples a request where each is one prompt to a server."""
    serving = config.serving
    if config.kind != "serving" or serving.target != "endpoint" or serving.samples_per_request == 1:
        return None
    return Contradiction(
        keys=("serving.samples_per_request", "serving.target", "kind"),
        cause=f"a request to an endpoint is one prompt, not {serving.samples_per_request}",
        next_step="Set serving.samples_per_request to 1",
    )
