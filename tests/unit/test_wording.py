"""No words of the validation library reach a user: each kind of error, each key of each model of files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pydantic_core
import pytest
from pydantic import BaseModel

from gpuproof.config.entries import StrictModel, cause_of, read_as
from gpuproof.config.inventory import Deployment, HostList
from gpuproof.config.settings import ConfigError
from gpuproof.config.yaml import Document
from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.launchers.slurm.options import SlurmOptions
from gpuproof.verdict.rules.load import RulesFile

LIBRARYS = re.compile(r"Input should|pydantic|valid dictionary|instance of|Value error|Field required")
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 10**12, 1.5, "", "a\0b", "x" * 9999, [], [[]], {}, {"x": {}}, [{"y": 1}]),
)


def class_names(base: type[BaseModel] = StrictModel) -> set[str]:
    return {base.__name__}.union(*map(class_names, base.__subclasses__()))


@pytest.mark.parametrize("kind", get_args(pydantic_core.core_schema.ErrorType))
def test_every_kind_of_error_has_words_of_ours(kind: str) -> None:
    class Anything(dict[str, Any]):
        def __missing__(self, key: str) -> str:
            return f"the {key}"

    said = cause_of({"type": kind, "ctx": Anything(), "msg": "Input should be a valid HostEntry"})
    assert said
    assert not LIBRARYS.search(said)


def nested(model: type[BaseModel]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield each key of a model and of those in it, with whether a list is around it."""
    for name, field in model.model_fields.items():
        yield (name,), False
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                for below, _ in nested(inner):
                    yield (name, *below), inner is not field.annotation


@pytest.mark.parametrize("model", [HostList, Deployment, RulesFile, SlurmOptions, KubernetesOptions])
def test_every_wrong_value_of_every_key_is_told_in_our_words(model: type[StrictModel]) -> None:
    messages = []
    for (first, *rest), is_list in nested(model):
        for wrong in WRONG:
            value = wrong
            for key in reversed(rest):
                value = {key: value}
            data = {first: [value] if rest and is_list else value}
            document = Document(source="f.yaml", data=data, lines={(): 1}, written={})
            try:
                read_as(model, document)
            except ConfigError as error:
                messages.append(str(error))
    assert messages
    classes = re.compile(rf"\b({'|'.join(class_names())})\b")
    assert [text for text in messages if LIBRARYS.search(text) or classes.search(text)] == []
