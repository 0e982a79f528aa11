"""Models from torchvision, timm and transformers, by name; these libraries are not imported here.

Input: `torchvision/resnet50`, `timm/resnet50`, `transformers/gpt2`, `transformers/bert:causal`. Output: a
workload with the library's own keyword arguments as its options. A library is imported only on the node, in
the one file named after it, which also determines the sizes that were not set. Until then, placeholders are
used for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Literal

from gpuproof.base.errors import UsageError
from gpuproof.workloads.info.base import InputShape, WorkloadInfo

IMAGE_SIZE, NUM_CLASSES, CHANNELS = 224, 1000, 3
SEQ_LEN, VOCAB_SIZE = 512, 32_000
"""Placeholders for values that only the library knows; the node replaces them with the values that are run
and recorded."""

Task = Literal["image", "causal", "masked"]
TASKS: tuple[Task, ...] = ("image", "causal", "masked")
IMAGE_TYPES = frozenset(
    {
        *("beit", "bit", "convnext", "convnextv2", "cvt", "data2vec-vision", "deit", "dinov2"),
        *("efficientnet", "focalnet", "levit", "mobilenet_v1", "mobilenet_v2", "mobilevit", "mobilevitv2"),
        *("poolformer", "pvt", "pvt_v2", "regnet", "resnet", "swin", "swinv2", "vit", "vit_msn"),
    }
)
MASKED_TYPES = frozenset(
    {
        *("albert", "bert", "camembert", "convbert", "deberta", "deberta-v2", "distilbert", "electra"),
        *("ernie", "esm", "funnel", "ibert", "longformer", "mobilebert", "modernbert", "mpnet", "mra"),
        *("nystromformer", "rembert", "roberta", "roformer", "squeezebert", "xlm-roberta"),
    }
)
"""Model types that are usually trained to fill in masked tokens; types listed neither here nor above predict
the next token."""

REFUSED = {
    "num_classes": ("the number of classes has its own key", "Set model.num_classes"),
    "num_labels": ("the number of classes has its own key", "Set model.num_classes"),
    **dict.fromkeys(
        ("pretrained", "weights", "weights_backbone", "checkpoint_path", "pretrained_cfg"),
        ("weights are initialised randomly, and nothing is downloaded", "Remove it"),
    ),
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class LibraryModel(WorkloadInfo):
    """A model from a library, by its name in that library. Its cost is counted on the node."""

    __slots__ = ()

    def resolve_implementation(self) -> Callable[[Any, InputShape], Any]:
        """Return a function that imports the library and builds the model; called only on the node."""
        return partial(super().resolve_implementation(), self.name.partition("/")[2])

    def resolve_shape(
        self, options: Mapping[str, Any], image_size: int | None, num_classes: int | None
    ) -> InputShape:
        """Get unset sizes from the library; called only on the node."""
        module = import_module(self.implementation.partition(":")[0])
        shape: InputShape = module.input_shape(self.name.partition("/")[2], options, image_size, num_classes)
        return shape


def library_model(name: str) -> LibraryModel | None:
    """Return the workload that `name` refers to; None if it is not from one of the libraries.

    Raises:
        UsageError: the part after the library is not a model name.
    """
    library, _, model = name.partition("/")
    if library not in LIBRARIES:
        return None
    base, colon, task = model.partition(":")
    named_task = library == "transformers" and task in TASKS
    if not _NAME.fullmatch(base) or (colon and not named_task):
        raise UsageError(
            f"{name!r} is not the name of a {library} model",
            place="model.name",
            next_step=f"Write {LIBRARIES[library]}",
        )
    if library == "transformers" and choose_task(model) != "image":
        return _workload(name, item="tokens", loss="token_cross_entropy", input_shape=_token_shape)
    return _workload(name, item="samples", loss="cross_entropy", input_shape=_image_shape)


LIBRARIES = {
    "torchvision": "torchvision/NAME, for example torchvision/resnet50",
    "timm": "timm/NAME, for example timm/resnet50",
    "transformers": "transformers/TYPE or transformers/TYPE:TASK, where TASK is "
    f"{', '.join(TASKS)}; for example transformers/gpt2",
}


def choose_task(model: str) -> Task:
    """Return the task of a transformers model: from the suffix of its name, else from its model type.

    >>> choose_task("gpt2"), choose_task("bert"), choose_task("bert:causal"), choose_task("vit")
    ('causal', 'masked', 'causal', 'image')
    """
    base, _, named = model.partition(":")
    for task in TASKS:
        if task == named:
            return task
    return "image" if base in IMAGE_TYPES else "masked" if base in MASKED_TYPES else "causal"


def _workload(
    name: str,
    *,
    item: Literal["samples", "tokens"],
    loss: Literal["cross_entropy", "token_cross_entropy"],
    input_shape: Callable[[Any, int | None, int | None], InputShape],
) -> LibraryModel:
    library = name.partition("/")[0]
    return LibraryModel(
        name=name,
        summary=f"a model from {library}, with random weights",
        item=item,
        options_type=dict,
        input_shape=input_shape,
        work=unknown_work,
        implementation=f"gpuproof.workloads.torch.{library}_models:build",
        loss=loss,
    )


def _image_shape(options: Mapping[str, Any], image_size: int | None, num_classes: int | None) -> InputShape:
    refuse_options(options)
    size = image_size or IMAGE_SIZE
    channels = _whole_number(options, "num_channels", _whole_number(options, "in_chans", CHANNELS))
    return InputShape(kind="image", shape=(channels, size, size), num_targets=num_classes or NUM_CLASSES)


def _token_shape(options: Mapping[str, Any], _image_size: int | None, _num_classes: int | None) -> InputShape:
    refuse_options(options)
    return InputShape(
        kind="tokens",
        shape=(_whole_number(options, "seq_len", SEQ_LEN),),
        num_targets=_whole_number(options, "vocab_size", VOCAB_SIZE),
    )


def refuse_options(options: Mapping[str, Any]) -> None:
    """Reject options that have their own recipe key, and options that would cause a download.

    Raises:
        UsageError: such an option is set.
    """
    for option, (cause, next_step) in REFUSED.items():
        if option in options:
            raise UsageError(cause, place=f"model.options.{option}", next_step=next_step)


def _whole_number(options: Mapping[str, Any], option: str, default: int) -> int:
    value = options.get(option, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(
            f"{value!r} is not a whole number of 1 or more",
            place=f"model.options.{option}",
            next_step="Set one, or omit the option",
        )
    return value


def unknown_work(_options: Mapping[str, Any], _shape: InputShape) -> None:
    """Return None: the model's cost is counted on the node."""
