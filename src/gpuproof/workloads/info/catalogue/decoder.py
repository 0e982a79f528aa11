"""Llama-style decoders, dense or with experts, from presets named after their actual sizes.

They use RMSNorm, rotary positions, grouped-query attention, SwiGLU and no biases; see Touvron et al. 2023
(https://arxiv.org/abs/2302.13971) and Grattafiori et al. 2024 (https://arxiv.org/abs/2407.21783). With
experts, a router sends each token to the few experts with the highest scores, with unlimited expert capacity;
there is no load-balancing loss. Every size in a preset can be overridden by an option of the same name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from gpuproof.workloads.info.base import (
    GenerationWork,
    InputShape,
    TensorParallel,
    Work,
    WorkloadInfo,
    require_positive,
)
from gpuproof.workloads.info.catalogue.counting import Multiplication, attention, dense, sum_work

Preset = Literal["10m", "100m", "350m", "1.1b", "3.2b", "8b"]
MoePreset = Literal["29m-a10m", "890m-a184m", "6.9b-a1.3b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderPlan:
    """All sizes of a decoder. If it has one expert, it is a dense decoder without a router."""

    vocab_size: int
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    d_ff: int
    tied_embeddings: bool
    num_experts: int = 1
    num_experts_per_token: int = 1

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.d_model // self.num_heads

    @property
    def kv_width(self) -> int:
        """Total width of all keys; the values have the same width."""
        return self.num_kv_heads * self.head_dim

    @property
    def expert_parameters(self) -> int:
        """Number of weights in one expert: gate, up and down."""
        return 3 * self.d_model * self.d_ff


def _plan(
    vocab_size: int,
    d_model: int,
    num_layers: int,
    heads: tuple[int, int],
    d_ff: int,
    *,
    tied: bool = False,
    experts: tuple[int, int] = (1, 1),
) -> DecoderPlan:
    return DecoderPlan(
        vocab_size=vocab_size,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        d_ff=d_ff,
        tied_embeddings=tied,
        num_experts=experts[0],
        num_experts_per_token=experts[1],
    )


PRESETS: dict[str, DecoderPlan] = {
    "10m": _plan(8192, 256, 10, (4, 2), 768, tied=True),
    "100m": _plan(32_000, 768, 12, (12, 4), 2048, tied=True),
    "350m": _plan(32_000, 1024, 24, (16, 8), 2816),
    # The sizes of TinyLlama 1.1B, Llama 3.2 3B and Llama 3.1 8B; parameter counts match the published counts.
    "1.1b": _plan(32_000, 2048, 22, (32, 4), 5632),
    "3.2b": _plan(128_256, 3072, 28, (24, 8), 8192, tied=True),
    "8b": _plan(128_256, 4096, 32, (32, 8), 14_336),
}
MOE_PRESETS: dict[str, DecoderPlan] = {
    "29m-a10m": _plan(8192, 256, 8, (4, 2), 512, tied=True, experts=(8, 2)),
    "890m-a184m": _plan(32_000, 1024, 16, (16, 8), 1024, tied=True, experts=(16, 2)),
    # The sizes of OLMoE 1B-7B (https://arxiv.org/abs/2409.02060), without its query and key norms.
    "6.9b-a1.3b": _plan(50_304, 2048, 16, (16, 16), 1024, experts=(64, 8)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes:
    """Sequence length, and sizes that override the preset; None keeps the preset's size."""

    seq_len: int = 2048
    vocab_size: int | None = None
    d_model: int | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None
    d_ff: int | None = None
    tied_embeddings: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderOptions(DecoderSizes):
    """A dense decoder."""

    preset: Preset = "10m"  # small, so that a first run finishes quickly even on a CPU

    def __post_init__(self) -> None:
        _check(self, self.plan)

    @property
    def plan(self) -> DecoderPlan:
        """All sizes: those in the preset, overridden by the options that are set."""
        return _laid_over(PRESETS[self.preset], self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeDecoderOptions(DecoderSizes):
    """A mixture-of-experts decoder; `d_ff` is the width of one expert."""

    preset: MoePreset = "29m-a10m"
    num_experts: int | None = None
    num_experts_per_token: int | None = None

    def __post_init__(self) -> None:
        _check(self, self.plan)
        if not self.plan.num_experts_per_token <= self.plan.num_experts or self.plan.num_experts < 2:
            raise ValueError(
                f"a token uses {self.plan.num_experts_per_token} of {self.plan.num_experts} "
                "experts: there must be at least 2 experts, and no fewer than a token uses"
            )

    @property
    def plan(self) -> DecoderPlan:
        """All sizes: those in the preset, overridden by the options that are set."""
        return _laid_over(MOE_PRESETS[self.preset], self)


def _laid_over(preset: DecoderPlan, options: DecoderSizes) -> DecoderPlan:
    sizes = {field.name: getattr(options, field.name, None) for field in fields(DecoderPlan)}
    return replace(preset, **{name: size for name, size in sizes.items() if size is not None})


def _check(options: DecoderSizes, plan: DecoderPlan) -> None:
    require_positive(options)
    if plan.d_model % plan.num_heads or plan.head_dim % 2:
        raise ValueError(f"d_model {plan.d_model} is not divisible into {plan.num_heads} heads of even width")
    if plan.num_heads % plan.num_kv_heads:
        raise ValueError(f"{plan.num_heads} heads cannot evenly share {plan.num_kv_heads} key-value heads")


def decoder_work(plan: DecoderPlan, *, seq_len: int) -> Work:
    """Count a decoder's parameters, and its FLOPs on one sequence with only the active experts."""
    layers = layer_products(plan, seq_len=seq_len) * plan.num_layers
    head = dense(plan.d_model, plan.vocab_size, bias=False, positions=seq_len)
    embedding = 0 if plan.tied_embeddings else plan.vocab_size * plan.d_model
    norms = (2 * plan.num_layers + 1) * plan.d_model
    idle_experts = plan.num_layers * (plan.num_experts - plan.num_experts_per_token)
    return sum_work(
        [*layers, head],
        other_parameters=embedding + norms,
        idle_parameters=idle_experts * plan.expert_parameters if plan.num_experts > 1 else None,
        first_input_is_data=False,
    )


def layer_products(plan: DecoderPlan, *, seq_len: int, keys: int | None = None) -> list[Multiplication]:
    """List one layer's matmuls for `seq_len` tokens that attend to `keys`, or to one another."""
    products = [
        dense(plan.d_model, plan.d_model, bias=False, positions=seq_len),
        dense(plan.d_model, 2 * plan.kv_width, bias=False, positions=seq_len),
        attention(seq_len, plan.d_model, keys=keys),
        dense(plan.d_model, plan.d_model, bias=False, positions=seq_len),
        Multiplication(
            num_weights=plan.num_experts * plan.expert_parameters,
            num_biases=0,
            macs=plan.num_experts_per_token * plan.expert_parameters * seq_len,
        ),
    ]
    if plan.num_experts > 1:
        products.append(dense(plan.d_model, plan.num_experts, bias=False, positions=seq_len))
    return products


def decoder_activation_values(plan: DecoderPlan, *, seq_len: int) -> int:
    """Return the minimum number of values a dense decoder stores per sequence for its backward pass.

    In each layer, a token stores 8 d_model (the inputs and outputs of both norms; queries, and keys and
    values for every head; the output of attention) and 4 d_ff (gate, its SiLU, up, the product of the last
    two). After the layers, it stores the last norm's input and output, the scores, and their log-softmax. If
    keys are repeated, queries are stored as well as the repeated keys; otherwise, values are stored as well
    as the inputs of queries and keys. Statistics of norms and attention, and the values stored by norms
    without a fused kernel, are not included: they add 8 to 16 % on a CPU.
    """
    beside = plan.kv_width if plan.num_kv_heads < plan.num_heads else 2 * plan.d_model
    per_layer = 8 * plan.d_model + beside + 4 * plan.d_ff
    return seq_len * (plan.num_layers * per_layer + 2 * plan.d_model + 2 * plan.vocab_size)


def generation_work(plan: DecoderPlan, *, prompt_tokens: int, new_tokens: int) -> GenerationWork:
    """Count generating `new_tokens` after `prompt_tokens`; the first attends to the prompt and itself."""
    first, last = prompt_tokens + 1, prompt_tokens + new_tokens
    mean_keys = (first + last) / 2
    per_token = 2 * plan.num_layers * plan.kv_width
    table = 0 if plan.tied_embeddings else plan.vocab_size * plan.d_model
    every_expert = plan.num_experts == plan.num_experts_per_token
    weights = decoder_work(plan, seq_len=1).num_parameters - table
    return GenerationWork(
        prefill_flops=_scored_once(plan, seq_len=prompt_tokens, keys=prompt_tokens),
        decode_flops=(decode_flops(plan, keys=first) + decode_flops(plan, keys=last)) / 2,
        cache_elements_per_token=per_token,
        decode_cache_elements=per_token * (mean_keys + 1),
        decode_weights=weights if every_expert else None,
    )


def decode_flops(plan: DecoderPlan, *, keys: int) -> float:
    """Count one new token that attends to `keys` positions in the cache, including its own."""
    return _scored_once(plan, seq_len=1, keys=keys)


def _scored_once(plan: DecoderPlan, *, seq_len: int, keys: int) -> float:
    layer = layer_products(plan, seq_len=seq_len, keys=keys)
    head = dense(plan.d_model, plan.vocab_size, bias=False)
    return 2.0 * (plan.num_layers * sum(product.macs for product in layer) + head.macs)


def _input_shape(
    options: DecoderOptions | MoeDecoderOptions, _image_size: object, _num_classes: object
) -> InputShape:
    return InputShape(kind="tokens", shape=(options.seq_len,), num_targets=options.plan.vocab_size)


def _work(options: DecoderOptions | MoeDecoderOptions, shape: InputShape) -> Work:
    return decoder_work(options.plan, seq_len=shape.shape[0])


def _divided(options: DecoderOptions | MoeDecoderOptions) -> dict[str, int]:
    plan = options.plan
    return {"num_heads": plan.num_heads, "num_kv_heads": plan.num_kv_heads, "d_ff": plan.d_ff}


def _num_whole_parameters(options: DecoderOptions | MoeDecoderOptions, _shape: InputShape) -> int:
    """Count the parameters of norms and routers."""
    plan = options.plan
    routers = plan.num_layers * plan.d_model * plan.num_experts if plan.num_experts > 1 else 0
    return (2 * plan.num_layers + 1) * plan.d_model + routers


def _generation(
    options: DecoderOptions | MoeDecoderOptions, prompt_tokens: int, new_tokens: int
) -> GenerationWork:
    return generation_work(options.plan, prompt_tokens=prompt_tokens, new_tokens=new_tokens)


def _activation_values(options: DecoderOptions, shape: InputShape) -> int:
    return decoder_activation_values(options.plan, seq_len=shape.shape[0])


def _decoder(
    name: str, summary: str, options_type: type[DecoderOptions] | type[MoeDecoderOptions]
) -> WorkloadInfo:
    return WorkloadInfo(
        name=name,
        summary=summary,
        item="tokens",
        options_type=options_type,
        input_shape=_input_shape,
        work=_work,
        implementation="gpuproof.workloads.torch.decoder:build_decoder",
        loss="token_cross_entropy",
        tensor_parallel=TensorParallel(
            plan="gpuproof.workloads.torch.tensor_plans:decoder_plan",
            divided=_divided,
            num_whole_parameters=_num_whole_parameters,
        ),
        generation=_generation,
    )


DECODER = replace(
    _decoder("decoder", f"Llama-style language model, presets {', '.join(PRESETS)}", DecoderOptions),
    activation_values=_activation_values,
)
MOE_DECODER = replace(
    _decoder(
        "moe_decoder",
        f"the same with routed experts, presets {', '.join(MOE_PRESETS)} (a: active parameters per token)",
        MoeDecoderOptions,
    ),
    reason_it_waits="in each layer, the host reads how many tokens go to each expert",
)
