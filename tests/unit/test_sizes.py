"""Sizes are written as 64MiB or 4G in every block of a recipe, those of suites and workloads among them."""

from __future__ import annotations

from typing import Any

import pytest

from gpuproof.base.registry import SUITES, names
from gpuproof.config.keys import all_keys
from gpuproof.config.load import load_config
from gpuproof.config.rules import require_workload
from gpuproof.config.rules.base import Facts
from gpuproof.config.settings import ConfigError, dotted
from gpuproof.config.suite_options import option_names
from gpuproof.workloads.info.catalogue.memory import MemoryOptions

SIZES = [
    *(dotted(path) for path in all_keys() if path[-1].endswith("_bytes")),
    *(
        f"{suite}.{name}"
        for suite in names(SUITES)
        for name in option_names(suite)
        if name.endswith("_bytes")
    ),
    "model.options.buffer_bytes",
]
RECIPES = {
    "collective": ("collectives",),
    "validate": ("validate-quick",),
    "model": ("quick", "--model.name=memory", "--data.name=synthetic", "--kind=inference"),
}


def words_for(key: str) -> tuple[str, ...]:
    section, name, *_ = key.split(".")
    if section == "probe":
        folder = ["--probe.storage.folder=data"] if name == "storage" else []
        return "probe", f"--probe.name={name}", *folder
    return RECIPES.get(section, ("quick",))


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize(("written", "size"), [("64MiB", 2**26), ("64m", 2**26), ("67108864", 2**26)])
def test_a_size_has_a_unit_or_none(key: str, written: str, size: int) -> None:
    recipe, *words = words_for(key)
    config = load_config(recipe, [*words, f"--{key}={written}"], facts=Facts()).config
    if key == "model.options.buffer_bytes":
        assert require_workload(config).options == MemoryOptions(buffer_bytes=size)
        return
    value: Any = {**config.model_dump(), **config.suite_options}
    for name in key.split("."):
        value = value[name]
    assert value == size


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("written", ["64 apples", "-1", "0", "9999999G"])
def test_what_is_no_size_is_refused_by_its_key(key: str, written: str) -> None:
    recipe, *words = words_for(key)
    with pytest.raises(ConfigError, match=key.rpartition(".")[2]):
        load_config(recipe, [*words, f"--{key}={written}"], facts=Facts())
