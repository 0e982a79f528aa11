"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"), small by default.

Encoder layers with a causal mask, pre-norm, tanh GELU, learned positions, and a head tied to the embedding.
There is no dropout. All weights are drawn with a standard deviation of 0.02; none is scaled by depth.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.workloads.info.base import InputShape, Work, WorkloadInfo
from gpuproof.workloads.info.catalogue.counting import dense, sum_work
from gpuproof.workloads.info.catalogue.encoder import EncoderSizes, encoder_layers, norm_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt2Options(EncoderSizes):
    """Sizes; the defaults are GPT-2 small."""

    d_model: int = 768
    num_layers: int = 12
    num_heads: int = 12
    d_ff: int = 3072
    seq_len: int = 1024
    vocab_size: int = 50_257


def _gpt2_input(options: Gpt2Options, _image_size: object, _num_classes: object) -> InputShape:
    return InputShape(kind="tokens", shape=(options.seq_len,), num_targets=options.vocab_size)


def _gpt2_work(options: Gpt2Options, shape: InputShape) -> Work:
    """Count the head's weights only once, as the embedding's, since the two are tied."""
    (positions,) = shape.shape
    layers = encoder_layers(options, positions=positions)
    layers.append(dense(options.d_model, options.vocab_size, bias=False, positions=positions))
    learnt_positions, last_norm = options.seq_len * options.d_model, 2 * options.d_model
    return sum_work(
        layers,
        other_parameters=learnt_positions + norm_parameters(options) + last_norm,
        first_input_is_data=False,
    )


GPT2 = WorkloadInfo(
    name="gpt2",
    summary="GPT-2 small, 124,439,808 parameters at 50,257 tokens and 1,024 positions",
    item="tokens",
    options_type=Gpt2Options,
    input_shape=_gpt2_input,
    work=_gpt2_work,
    implementation="gpuproof.workloads.torch.encoder:build_gpt2",
    loss="token_cross_entropy",
)
