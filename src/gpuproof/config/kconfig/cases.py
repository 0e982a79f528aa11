r"""Cases from a Kconfig `.config` of an older test matrix.

In: lines such as `CONFIG_TEST_OPTIMIZERS="sgd,adamwprune"`. Out: words that set a matrix's fields `model`,
`optimizer`, `pruning` and `sparsity`, and fixed fields. Pruning none has sparsity 0, and the method `state`
is of adamwprune alone, which knows no other.

>>> words_of('CONFIG_TEST_OPTIMIZERS="sgd"\nCONFIG_NUM_EPOCHS=3\n', source=".config")
['--matrix.include=[{"optimizer": "sgd"}]', '--cases.fields.epochs=3']
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

from gpuproof.config.kconfig.defaults import read_options
from gpuproof.config.settings import ConfigError, Mistake
from gpuproof.config.yaml import resolve

LISTS = {"TEST_MODELS": "model", "TEST_OPTIMIZERS": "optimizer", "TEST_PRUNING_METHODS": "pruning"}
FIXED = {
    "NUM_EPOCHS": "epochs",
    "BATCH_SIZE": "batch_size",
    "LEARNING_RATE": "learning_rate",
    "NUM_WORKERS": "num_workers",
}
_SPARSITY = re.compile(r"TEST_SPARSITY_(\d+)")
STATE, ITS_OPTIMIZER, NONE = "state", "adamwprune", "none"


def words_of(text: str, *, source: str) -> list[str]:
    """Return the words of the cases that the file describes.

    Raises:
        ConfigError: a line is no setting, or none names a case.
    """
    values = {name: value for name, value in read_options(text, source=source) if value != "n"}
    axes: dict[str, list[object]] = {
        field: [resolve(part.strip()) for part in re.split(r"[,\s]+", values[name]) if part.strip()]
        for name, field in LISTS.items()
        if values.get(name)
    }
    sparsities = [
        int(match[1]) / 10 ** len(match[1])
        for name, value in values.items()
        if (match := _SPARSITY.fullmatch(name)) and value == "y"
    ]
    if not axes:
        keys = ", ".join(f"CONFIG_{name}" for name in LISTS)
        raise ConfigError([Mistake(place=source, cause="it names no case", next_step=f"Set one of {keys}")])
    fixed = [f"--cases.fields.{field}={values[name]}" for name, field in FIXED.items() if values.get(name)]
    return [f"--matrix.include={json.dumps(list(_cases(axes, sparsities)))}", *fixed]


def _cases(axes: dict[str, list[object]], sparsities: list[float]) -> Iterator[dict[str, object]]:
    """Yield each combination that can be, a case without pruning once."""
    for values in itertools.product(*axes.values()):
        case = dict(zip(axes, values, strict=True))
        method, optimizer = case.get("pruning"), case.get("optimizer")
        is_pair = (method == STATE) == (optimizer == ITS_OPTIMIZER)
        if "optimizer" in case and method not in (None, NONE) and not is_pair:
            continue
        if method is None or not sparsities:
            yield case
        else:
            yield from ({**case, "sparsity": s} for s in ([0.0] if method == NONE else sparsities))
