"""Transformers without a causal mask: an encoder over tokens, and ViT-B/16 over image patches.

The encoder follows Vaswani et al. 2017 (https://arxiv.org/abs/1706.03762): norms after the residual, ReLU,
dropout, and sinusoidal positions, which are not parameters. ViT is the model of Dosovitskiy et al. 2020
(https://arxiv.org/abs/2010.11929): norms before the layers, GELU, a class token, learned positions.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuproof.base.errors import UsageError
from gpuproof.workloads.info.base import InputShape, TensorParallel, Work, WorkloadInfo, require_positive
from gpuproof.workloads.info.catalogue.counting import Multiplication, attention, convolution, dense, sum_work

TRANSFORMER_DROPOUT = 0.1
VIT_SIZE, VIT_CLASSES = 224, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSizes:
    """Sizes common to all encoders: width, depth, heads, and feed-forward width."""

    d_model: int
    num_layers: int
    num_heads: int
    d_ff: int

    def __post_init__(self) -> None:
        require_positive(self)
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model {self.d_model} is not divisible into {self.num_heads} heads")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerOptions(EncoderSizes):
    """An encoder over sequences of `seq_len` tokens from a vocabulary of `vocab_size`."""

    d_model: int = 1024
    num_layers: int = 12
    num_heads: int = 16
    d_ff: int = 4096
    seq_len: int = 512
    vocab_size: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class VitOptions(EncoderSizes):
    """A vision transformer over patches of `patch_size` pixels; the defaults are B/16."""

    d_model: int = 768
    num_layers: int = 12
    num_heads: int = 12
    d_ff: int = 3072
    patch_size: int = 16


def encoder_layers(sizes: EncoderSizes, *, positions: int) -> list[Multiplication]:
    """List the matmuls in all layers: fused queries, keys, values; attention; two linear layers."""
    width = sizes.d_model
    layer = [
        dense(width, 3 * width, positions=positions),
        attention(positions, width),
        dense(width, width, positions=positions),
        dense(width, sizes.d_ff, positions=positions),
        dense(sizes.d_ff, width, positions=positions),
    ]
    return layer * sizes.num_layers


def norm_parameters(sizes: EncoderSizes) -> int:
    """Count the parameters (scale and shift) of the two layer norms in each layer."""
    return sizes.num_layers * 2 * 2 * sizes.d_model


def _transformer_input(options: TransformerOptions, _image_size: object, _num_classes: object) -> InputShape:
    return InputShape(kind="tokens", shape=(options.seq_len,), num_targets=options.vocab_size)


def _transformer_work(options: TransformerOptions, shape: InputShape) -> Work:
    (positions,) = shape.shape
    layers = encoder_layers(options, positions=positions)
    layers.append(dense(options.d_model, options.vocab_size, positions=positions))
    embedding = options.vocab_size * options.d_model
    return sum_work(layers, other_parameters=embedding + norm_parameters(options), first_input_is_data=False)


def _vit_input(options: VitOptions, image_size: int | None, num_classes: int | None) -> InputShape:
    size = image_size or VIT_SIZE
    if size % options.patch_size:
        raise UsageError(
            f"{size} pixels are not divisible into patches of {options.patch_size}",
            place="data.image_size",
            next_step=f"Use a multiple of {options.patch_size}; null uses the model's own {VIT_SIZE}",
        )
    return InputShape(kind="image", shape=(3, size, size), num_targets=num_classes or VIT_CLASSES)


def vit_positions(options: VitOptions, shape: InputShape) -> int:
    """Return the sequence length: the patches plus the class token."""
    return (shape.shape[-1] // options.patch_size) ** 2 + 1


def _vit_work(options: VitOptions, shape: InputShape) -> Work:
    positions = vit_positions(options, shape)
    width, patch = options.d_model, options.patch_size
    layers = [
        convolution(3, width, kernel=patch, size=shape.shape[-1] // patch, bias=True),
        *encoder_layers(options, positions=positions),
        dense(width, shape.num_targets),
    ]
    learnt_positions_and_class_token = (positions + 1) * width
    last_norm = 2 * width
    return sum_work(
        layers, other_parameters=learnt_positions_and_class_token + norm_parameters(options) + last_norm
    )


def _divided(options: EncoderSizes) -> dict[str, int]:
    return {"num_heads": options.num_heads, "d_ff": options.d_ff}


def _whole_in_layers(options: EncoderSizes, _shape: InputShape) -> int:
    """Count norms, and biases that are added after the sum over ranks."""
    return norm_parameters(options) + options.num_layers * 2 * options.d_model


def _whole_in_vit(options: VitOptions, shape: InputShape) -> int:
    """Also count the parts outside the layers: patches, class token, positions, norm and classifier."""
    width = options.d_model
    patches = (3 * options.patch_size**2 + 1) * width
    others = (1 + vit_positions(options, shape) + 2) * width
    return _whole_in_layers(options, shape) + patches + others + (width + 1) * shape.num_targets


TRANSFORMER = WorkloadInfo(
    name="transformer",
    summary="encoder that predicts the next token at each position, 153,203,688 parameters at 1000 tokens",
    item="tokens",
    options_type=TransformerOptions,
    input_shape=_transformer_input,
    work=_transformer_work,
    implementation="gpuproof.workloads.torch.encoder:build_transformer",
    loss="token_cross_entropy",
    tensor_parallel=TensorParallel(
        plan="gpuproof.workloads.torch.tensor_plans:encoder_plan",
        divided=_divided,
        num_whole_parameters=_whole_in_layers,
    ),
)
VIT_B_16 = WorkloadInfo(
    name="vit_b_16",
    summary="ViT-B/16, 86,567,656 parameters at 224 pixels and 1000 classes",
    item="samples",
    options_type=VitOptions,
    input_shape=_vit_input,
    work=_vit_work,
    implementation="gpuproof.workloads.torch.encoder:build_vit",
    loss="cross_entropy",
    tensor_parallel=TensorParallel(
        plan="gpuproof.workloads.torch.tensor_plans:encoder_plan",
        divided=_divided,
        num_whole_parameters=_whole_in_vit,
    ),
)
