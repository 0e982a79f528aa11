"""Which keys of `serving` conflict with each other or with other keys.

An endpoint always generates text; our own model does if it has a key-value cache, unless `serving.new_tokens`
is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpuproof.config.rules.base import Refusal, Refusals, RuleSet
from gpuproof.config.rules.workload import ChosenWorkload

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig


LOADGENS_OWN = {
    "offline": "without a rate, the search starts with a launch in which all requests arrive at once",
    "single_stream": "closed_loop with serving.concurrency 1 sends one request at a time",
    "multi_stream": "closed_loop with serving.concurrency 1 and serving.samples_per_request sends several "
    "samples at a time",
}
"""MLPerf LoadGen scenarios, and the alternatives that measure the same thing."""


def scenario_is_measured(config: RunConfig) -> Refusals:
    """Reject LoadGen scenarios that add nothing to the other scenarios."""
    instead = LOADGENS_OWN.get(config.serving.scenario)
    if instead is not None:
        yield Refusal(
            keys=("serving.scenario", "kind"),
            cause=f"{config.serving.scenario} is an MLPerf LoadGen scenario that is no longer measured",
            next_step=f"Set serving.scenario to server or closed_loop: {instead}",
        )


def users_have_no_schedule(config: RunConfig) -> Refusals:
    """Reject a rate or a schedule for the users of a closed loop."""
    unused = ("rate_per_s", "arrivals", "burstiness") if config.serving.scenario == "closed_loop" else ()
    for key in (key for key in unused if key in config.serving.changed()):
        yield Refusal(
            keys=(f"serving.{key}", "serving.scenario", "kind"),
            cause="each user of a closed loop waits for a response, so it has no effect",
            next_step="Remove it, or set serving.scenario to server",
        )


def serving_can_be_judged(config: RunConfig) -> Refusals:
    """Require a latency bound when searching for the highest rate or measuring goodput."""
    serving, bounds = config.serving, config.serving.bounds
    if serving.latency_bound_s or bounds.ttft_s or bounds.tpot_s:
        return
    if serving.scenario == "server" and serving.rate_per_s is None and serving.arrivals != "trace":
        yield Refusal(
            keys=("serving.rate_per_s", "serving.latency_bound_s", "kind"),
            cause="the highest rate under a latency bound is requested, but "
            "serving.latency_bound_s is null, and so are the bounds of serving.bounds",
            next_step="Set serving.latency_bound_s, or the rate itself",
        )
    elif bounds.goodput_percentile is not None:
        yield Refusal(
            keys=("serving.bounds.goodput_percentile", "serving.latency_bound_s", "kind"),
            cause="goodput is the rate of requests within all bounds, but none is set",
            next_step="Set serving.latency_bound_s or a bound of serving.bounds",
        )


def bounds_of_tokens_need_tokens(config: RunConfig) -> Refusals:
    """Reject bounds on tokens if no tokens are generated, or none after the first."""
    serving = config.serving
    for key, least in (("ttft_s", 1), ("tpot_s", 2)):
        num_tokens = 0 if serving.target == "noop" else serving.new_tokens
        if getattr(serving.bounds, key) is not None and num_tokens is not None and num_tokens < least:
            tokens = "noop generates none" if serving.target == "noop" else f"{num_tokens} are generated"
            yield Refusal(
                keys=(f"serving.bounds.{key}", "serving.new_tokens", "serving.target", "kind"),
                cause=f"the bound applies to tokens and needs {least} or more per request, but {tokens}",
                next_step=f"Remove serving.bounds.{key}, or have tokens generated",
            )


def endpoint_has_an_address(config: RunConfig) -> Refusals:
    """Require a URL and a model if the target is an endpoint."""
    endpoint = config.serving.endpoint
    if config.serving.target != "endpoint":
        return
    missing = next((key for key in ("url", "model") if getattr(endpoint, key) is None), None)
    if missing is not None:
        yield Refusal(
            keys=(f"serving.endpoint.{missing}", "serving.target", "kind"),
            cause=f"the target is an endpoint, but serving.endpoint.{missing} is null",
            next_step=f"Set serving.endpoint.{missing}",
        )


def a_request_fits_a_batch(config: RunConfig) -> Refusals:
    """Reject requests that do not fit a batch."""
    samples, batch = config.serving.samples_per_request, config.serving.max_batch
    if samples > batch:
        yield Refusal(
            keys=("serving.max_batch", "serving.samples_per_request", "kind"),
            cause=f"a request has {samples} samples, but a batch has room for {batch}",
            next_step=f"Set serving.max_batch to {samples} or more",
        )


def one_rank_serves(config: RunConfig) -> Refusals:
    """Reject running with more than one rank."""
    if config.distributed.nproc > 1:
        yield Refusal(
            keys=("distributed.nproc", "kind"),
            cause=f"{config.distributed.nproc} ranks are requested, but serving uses one rank",
            next_step="Set distributed.nproc to 1",
        )


def prompts_are_answered(config: RunConfig) -> Refusals:
    """Reject a token count if no tokens can be generated, and a count of zero if some must be."""
    serving = config.serving
    option = next((key for key in ("new_tokens", "prompt_tokens") if getattr(serving, key)), None)
    if serving.target == "noop" and option is not None:
        yield Refusal(
            keys=(f"serving.{option}", "serving.target", "kind"),
            cause="noop answers immediately and generates no tokens",
            next_step=f"Remove serving.{option}, or set serving.target to model",
        )
    if serving.target == "endpoint" and serving.new_tokens == 0:
        yield Refusal(
            keys=("serving.new_tokens", "serving.target", "kind"),
            cause="an endpoint must generate tokens, but serving.new_tokens is 0",
            next_step="Set serving.new_tokens to 1 or more",
        )
    if serving.target == "model" and serving.new_tokens == 0 and serving.prompt_tokens is not None:
        yield Refusal(
            keys=("serving.prompt_tokens", "serving.new_tokens", "kind"),
            cause="serving.new_tokens is 0, so only forward passes over whole samples run, without a prompt",
            next_step="Remove serving.prompt_tokens, or set serving.new_tokens to 1 or more",
        )


def an_endpoint_gets_single_prompts(config: RunConfig) -> Refusals:
    """Reject several samples per request if each request to the server is one prompt."""
    serving = config.serving
    if serving.target == "endpoint" and serving.samples_per_request > 1:
        yield Refusal(
            keys=("serving.samples_per_request", "serving.target", "kind"),
            cause=f"a request to an endpoint is one prompt, not {serving.samples_per_request}",
            next_step="Set serving.samples_per_request to 1",
        )


def serving_sweeps_nothing(config: RunConfig) -> Refusals:
    """Reject a matrix and a batch-size search, which a serving run would ignore."""
    for key, is_there in (("matrix", config.matrix), ("search.kind", config.search.kind is not None)):
        if is_there:
            yield Refusal(
                keys=(key, "kind"),
                cause="kind serving measures one scenario, or searches for the highest rate itself",
                next_step=f"Remove {key.partition('.')[0]}, and start a run for each point",
            )


def an_address_can_be_reached(config: RunConfig) -> Refusals:
    """Reject a URL without a host or port, or with parts that are not sent in a request."""
    url = config.serving.endpoint.url
    if url is not None and (cause := _fault_of_address(url)) is not None:
        yield Refusal(keys=("serving.endpoint.url",), cause=cause, next_step="Write e.g. http://host:8000/v1")


def _fault_of_address(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"this is not a URL ({error})"
    name = (parts.hostname or "").strip(".")
    faults = (
        (not name, "the URL contains no host"),
        (port == 0, "no server listens at port 0"),
        (
            parts.username is not None,
            "a URL is stored with the run, and this one contains a user or a password",
        ),
        (bool(parts.query or parts.fragment), "a request adds its own path, so nothing may follow it"),
        (not url.isascii() or not url.isprintable(), "a URL must be ASCII"),
    )
    return next((cause for is_so, cause in faults if is_so), None)


def requests_are_answered(config: RunConfig, chosen: ChosenWorkload) -> Refusals:
    """Reject tokens from a model that cannot generate any, and settings that no cache supports."""
    serving = config.serving
    if serving.target != "model" or serving.new_tokens == 0:
        return
    if chosen.info.generation is not None:
        yield from _cache_refusals(config)
        return
    features = {
        "new_tokens": serving.new_tokens,
        "prompt_tokens": serving.prompt_tokens,
        "bounds.ttft_s": serving.bounds.ttft_s,
        "bounds.tpot_s": serving.bounds.tpot_s,
    }
    feature = next((key for key, value in features.items() if value is not None), None)
    if feature is not None:
        yield Refusal(
            keys=(f"serving.{feature}", "model.name"),
            cause=f"{chosen.info.name} has no key-value cache to generate tokens from",
            next_step=f"Remove serving.{feature}, or set model.name to decoder or moe_decoder",
        )


def _cache_refusals(config: RunConfig) -> Refusals:
    whole = "or serving.new_tokens to 0, which runs forward passes over whole sequences"
    if config.training.compile.enabled:
        yield Refusal(
            keys=("training.compile.enabled", "kind"),
            cause="requests use a cache that grows, and torch.compile would recompile for each length",
            next_step=f"Set it to false, {whole}",
        )
    if config.data.name != "synthetic":
        yield Refusal(
            keys=("data.name", "kind"),
            cause=f"requests are prompts of random tokens, but data.name is {config.data.name}",
            next_step=f"Set it to synthetic, {whole}",
        )


def arrivals_can_be_made(config: RunConfig) -> Refusals:
    """Reject an arrival process without the settings it needs, or with settings that it would ignore."""
    serving = config.serving
    arrivals, rate_per_s = serving.arrivals, serving.rate_per_s
    refused = (
        (
            arrivals == "trace" and serving.trace is None,
            "trace",
            "arrivals come from a trace, but serving.trace is null",
            "Set serving.trace to a file of JSON lines, or serving.arrivals to poisson",
        ),
        (
            arrivals == "trace" and rate_per_s is not None,
            "rate_per_s",
            "the trace contains the times of its requests, so a rate has no effect",
            "Remove serving.rate_per_s, or set serving.arrivals to poisson and keep the trace's lengths",
        ),
        (
            arrivals == "ramp" and serving.scenario == "server" and rate_per_s is None,
            "rate_per_s",
            "a search tests steady rates, but the rate of a ramp rises",
            "Set serving.rate_per_s to the mean rate of the ramp, or serving.arrivals to poisson",
        ),
        (
            serving.conversation.turns > 1 and serving.scenario != "closed_loop",
            "conversation",
            "each turn waits for the previous response, but requests arrive on a schedule",
            "Set serving.scenario to closed_loop, or remove serving.conversation",
        ),
        (
            arrivals != "gamma" and serving.burstiness != 1,
            "burstiness",
            f"it is for gamma arrivals, but serving.arrivals is {arrivals}",
            "Set serving.arrivals to gamma, or remove serving.burstiness",
        ),
    )
    for is_so, key, cause, next_step in refused:
        if is_so:
            keys = (f"serving.{key}", "serving.arrivals", "kind")
            yield Refusal(keys=keys, cause=cause, next_step=next_step)


def texts_are_of_an_endpoint(config: RunConfig) -> Refusals:
    """Reject lengths, prefixes and traces without an endpoint, and a trace combined with lengths."""
    serving, lengths = config.serving, config.serving.lengths
    names = ("trace", "lengths", "shared_prefix", "conversation")
    options = [name for name in names if name in serving.changed()]
    if options and serving.target != "endpoint":
        yield Refusal(
            keys=(f"serving.{options[0]}", "serving.target", "kind"),
            cause=f"the requests of target {serving.target} are all identical",
            next_step=f"Remove serving.{options[0]}, or set serving.target to endpoint",
        )
    elif "trace" in options and len(options) > 1:
        yield Refusal(
            keys=(f"serving.{options[1]}", "serving.trace", "kind"),
            cause="the trace contains its requests' lengths and shared prefixes",
            next_step=f"Remove serving.{options[1]}, or serving.trace",
        )
    elif lengths.shape == "uniform" and max(lengths.prompt_spread, lengths.new_spread) > 1:
        yield Refusal(
            keys=("serving.lengths", "kind"),
            cause="uniform lengths start at mean · (1 − spread), which is below 0 for a spread over 1",
            next_step="Set the spread to 1 or less, or serving.lengths.shape to lognormal",
        )


def several_clients_load_an_endpoint(config: RunConfig) -> Refusals:
    """Reject several client processes for a target that gets all its requests from one process."""
    if config.serving.clients is not None and config.serving.target != "endpoint":
        yield Refusal(
            keys=("serving.clients", "serving.target", "kind"),
            cause=f"one process issues the requests of target {config.serving.target}",
            next_step="Remove serving.clients, or set serving.target to endpoint",
        )


RULES = RuleSet(
    of_recipe=(
        several_clients_load_an_endpoint,
        serving_can_be_judged,
        bounds_of_tokens_need_tokens,
        endpoint_has_an_address,
        a_request_fits_a_batch,
        one_rank_serves,
        prompts_are_answered,
        an_endpoint_gets_single_prompts,
        arrivals_can_be_made,
        texts_are_of_an_endpoint,
    ),
    of_workload=(requests_are_answered,),
    of_new_run=(
        scenario_is_measured,
        users_have_no_schedule,
        serving_sweeps_nothing,
        an_address_can_be_reached,
    ),
)
