"""`model` and `inference`: what is trained or run, and how it is run forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from gpuproof.records.work.options import MAX_TOKENS, Limits, Options, Text
from gpuproof.records.work.training import Graphs, Weights

OWN_MODULE = "python:"
"""What names of models begin with that are modules of the user's."""
InferenceMode = Literal["throughput", "latency"]
InferencePhase = Literal["forward", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Options):
    """What is trained or run."""

    name: Text = "resnet50"
    """The registered name of a workload; torchvision/NAME, timm/NAME or transformers/TYPE, a library's model
    with random weights; or python:package.module:Class, a module of your own."""
    num_classes: Annotated[int, Limits(ge=2, le=10**6)] | None = None
    """Number of classes; null is the model's default."""
    channels_last: bool = True
    """Lay images out as NHWC in memory (CUDA only)."""
    options: dict[str, Any] = field(default_factory=dict)
    """The workload's own options, checked by the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSpec(Options):
    """How a model is run forward."""

    mode: InferenceMode = "throughput"
    """throughput queues steps and waits for none; latency waits for each and times it alone."""
    phase: InferencePhase = "forward"
    """forward runs whole samples; prefill reads prompts into a key-value cache; decode makes one token a step
    from it."""
    prompt_tokens: Annotated[int, Limits(ge=1, le=MAX_TOKENS)] = 512
    """Tokens of each prompt, for prefill and decode."""
    new_tokens: Annotated[int, Limits(ge=1, le=MAX_TOKENS)] = 128
    """Tokens that decode makes, a step each, before the cache goes back to the prompt."""
    weights: Weights = "precision"
    """How weights are stored: in the type of training.precision, as models are deployed (fp8: quantised
    once), or in fp32, cast in each step by autocast. A module of your own keeps fp32."""
    cuda_graphs: Graphs = "auto"
    """Whether what works on a cache (prefill, decode, serving of text) replays CUDA graphs, one for each
    bucket of 64 tokens; auto does where the device can. The forward phase goes by training.cuda_graphs."""
