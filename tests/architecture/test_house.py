"""The rules of the house: names that are unique, folders, files and functions of a size that can be read.

A rule names all that breaks it, and nothing does.
"""

from __future__ import annotations

import ast
import re
import runpy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import median

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "gpuproof"

MAX_FILES = 20
MAX_FILE_LINES = 400
SMALL_FILE_LINES = 60
MAX_FUNCTION_LINES = 40
MEDIAN_FUNCTION_LINES = 12
MAX_EMPTY, MAX_EMPTY_COMPOUNDS = 0.005, 0.01
"""Shares of all names: `found`, and `found_hosts`."""
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "manager", "managers", "misc", "common"}
ONE_FILE_EACH = re.compile(
    r"(suites|launchers|devices|workloads)/[^/]+/|config/(sections|rules)/|verdict/(checks|rules)/|"
    r"worker/(probes|launched)/"
)
"""Folders in which each file is one suite, launcher, driver, model, block, rule, check or probe: a small one
needs no second importer."""

KINDS = {"training", "inference", "serving", "load", "collective", "probe", "command"}
WORKS = {"TrainingWork", "InferenceWork", "ServingWork", "CollectiveWork", "ProbeWork", "CommandWork"}
MAY_ASK_FOR_THE_KIND = {
    "suites/": "a suite is what is special to a kind of run",
    "config/rules/": "a rule refuses keys that a kind of run cannot have, before any suite is chosen",
    "launches/served.py": "the figures of requests are of serving alone",
    "worker/rank/assignment.py": "the worker's one dispatch: steps, or requests",
    "worker/step/preparation.py": "it builds the step that trains from what is asked of training alone",
    "worker/step/generation.py": "prompts are asked for by inference and by serving, each in its own words",
    "worker/step/memory.py": "an optimizer is asked for by training alone",
    "worker/step/applicability.py": "it says which keys have no effect on which kind of run",
}
"""Where `kind ==` and `isinstance(work, …Work)` may stand, and why there; others ask what the work is like:
`trains`, `generates`, `measures_latency`."""

HOMES = {
    "amdsmi": "devices/amd/library.py",
    "psutil": "monitor/host.py",
    "pynvml": "devices/nvidia/nvml.py",
    "tensorflow": "worker/tensorflow/mirrored.py",
    "timm": "workloads/torch/timm_models.py",
    "torchvision": "workloads/torch/torchvision_models.py",
    "transformers": "workloads/torch/transformers_models.py",
}
"""The one file that imports each library which a node may lack."""

Sources = Mapping[str, str]
"""The text of each file of the package, by its path within."""


@cache
def sources() -> Sources:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in paths}


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(text)))


def repeated_classes(files: Sources) -> set[str]:
    found = chain.from_iterable(map(nodes, files.values()))
    names = Counter(node.name for node in found if isinstance(node, ast.ClassDef))
    return {name for name, times in names.items() if times > 1}


def full_folders(files: Sources) -> set[str]:
    sizes = Counter(Path(path).parent.as_posix() for path in files)
    return {folder for folder, size in sizes.items() if size > MAX_FILES}


def long_files(files: Sources) -> set[str]:
    return {path for path, text in files.items() if text.count("\n") > MAX_FILE_LINES}


def lonely_small_files(files: Sources) -> set[str]:
    """Name the small files that one other file imports, or none, and that nothing enters by their name."""
    entered = entry_modules() | set(chain.from_iterable(map(named_in_text, files.values())))
    importers = defaultdict(set)
    for path, text in files.items():
        for name in imported_modules(text):
            importers[name].add(path)
    return {
        path
        for path, text in files.items()
        if text.count("\n") < SMALL_FILE_LINES
        and Path(path).stem not in ("__init__", "__main__")
        and not ONE_FILE_EACH.match(path)
        and module_name(path) not in entered
        and len(importers[module_name(path)]) < 2
    }


def long_functions(files: Sources) -> set[str]:
    return {name for name, lines in functions(files) if lines > MAX_FUNCTION_LINES}


def emptily_named_files(files: Sources) -> set[str]:
    return {path for path in files if EMPTY_NAMES & set(re.split(r"[/_.]", path))}


def questions_of_kind(files: Sources) -> set[str]:
    """Name the files that compare a kind of run with one of its values."""
    return {path for path, text in files.items() if any(map(asks_for_the_kind, nodes(text)))}


def asks_for_the_kind(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "isinstance":
        return any(getattr(part, "id", None) in WORKS for part in ast.walk(node.args[1]))
    if isinstance(node, ast.MatchClass):
        return getattr(node.cls, "id", None) in WORKS
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    names = {getattr(side, "attr", getattr(side, "id", None)) for side in sides}
    values = {part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)}
    return "kind" in names and bool(values & KINDS)


def names_that_say_nothing(files: Sources) -> set[str]:
    """Name the words that say only that something was done to a value, if too many are bound."""
    size = runpy.run_path(str(ROOT / "scripts" / "size.py"))
    names = Counter(chain.from_iterable(size["bound_names"](ast.parse(text)) for text in files.values()))
    words = {name: size["EMPTY"].intersection(name.strip("_").split("_")) for name in names}
    compounds = sum(times for name, times in names.items() if words[name])
    exact = sum(times for name, times in names.items() if name.strip("_") in size["EMPTY"])
    is_much = exact > MAX_EMPTY * names.total() or compounds > MAX_EMPTY_COMPOUNDS * names.total()
    return set().union(*words.values()) if is_much else set()


def misplaced_questions_of_kind(files: Sources) -> set[str]:
    return {path for path in questions_of_kind(files) if not path.startswith(tuple(MAY_ASK_FOR_THE_KIND))}


def deep_classes(files: Sources) -> set[str]:
    """Name classes two deep in inheritance from classes of ours; errors and models of files are apart.

    An error is caught by its ancestors, and what every model of a file shares is its strictness.
    """
    classes = [n for n in chain.from_iterable(map(nodes, files.values())) if isinstance(n, ast.ClassDef)]
    bases = {
        node.name: {name for base in node.bases if (name := getattr(base, "id", None))} for node in classes
    }
    return {
        name
        for name, above in bases.items()
        for parent in above & bases.keys()
        if not name.endswith("Error") and (bases[parent] & bases.keys()) - {"StrictModel"}
    }


def strayed_libraries(files: Sources) -> set[str]:
    """Name the files that import what a node may lack, beside the one that is named for it."""
    return {
        path
        for path, text in files.items()
        for name in imported_modules(text)
        if HOMES.get(name.partition(".")[0], path) != path
    }


def strayed_launchers(files: Sources) -> set[str]:
    """Name the files that know a launcher of other hosts: but for its line in the registry none does."""
    folders = {path.split("/")[1] for path in files if path.startswith("launchers/") and path.count("/") == 2}
    strayed = set()
    for name in folders - {"local"}:
        others = {
            path for path in files if not path.startswith(("launchers/registry.py", f"launchers/{name}/"))
        }
        strayed |= {path for path in others if names_launcher(files[path], name)}
    return strayed


def names_launcher(text: str, name: str) -> bool:
    words = {node.value for node in nodes(text) if isinstance(node, ast.Constant)}
    modules = [module.split(".")[:3] for module in imported_modules(text)]
    return name in words or ["gpuproof", "launchers", name] in modules


def functions(files: Sources) -> Iterator[tuple[str, int]]:
    """Yield `FILE:NAME` and the lines, from `def` to the last, of each function and method."""
    for path, text in files.items():
        for node in nodes(text):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def entry_modules() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project["scripts"], *project["entry-points"].values()]
    return {value.partition(":")[0] for group in groups for value in group.values()}


def module_name(path: str) -> str:
    return ".".join(["gpuproof", *Path(path).with_suffix("").parts]).removesuffix(".__init__")


def imported_modules(text: str) -> Iterator[str]:
    for node in nodes(text):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named_in_text(text: str) -> Iterator[str]:
    """Yield the modules that strings name to be started or imported; docstrings do neither."""
    for node in nodes(text):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n\n" not in node.value:
            yield from re.findall(r"gpuproof(?:\.\w+)+", node.value)


RULES: dict[str, Callable[[Sources], set[str]]] = {
    "class": repeated_classes,
    "folder": full_folders,
    "file": long_files,
    "small file": lonely_small_files,
    "function": long_functions,
    "name": emptily_named_files,
    "kind": misplaced_questions_of_kind,
    "value": names_that_say_nothing,
    "inheritance": deep_classes,
    "library": strayed_libraries,
    "launcher": strayed_launchers,
}
PLANTED: dict[str, tuple[dict[str, str], str]] = {
    "class": ({"store.py": "class Twice: ...\n", "units.py": "class Twice: ...\n"}, "Twice"),
    "folder": ({f"suites/s{number}.py": "" for number in range(21)}, "suites"),
    "file": ({"store.py": "x = 1\n" * 401}, "store.py"),
    "small file": (
        {"report/small.py": "x = 1\n", "store.py": "import gpuproof.report.small\n"},
        "report/small.py",
    ),
    "function": ({"store.py": "def f():\n" + "    x = 1\n" * 40}, "store.py:f"),
    "name": ({"report/text_utils.py": ""}, "report/text_utils.py"),
    "kind": ({"campaign.py": "is_load = config.kind in ('load', 'x')\n"}, "campaign.py"),
    "value": ({"store.py": "found_hosts = found = 1\n"}, "found"),
    "inheritance": ({"store.py": "class A: ...\nclass B(A): ...\nclass C(B): ...\n"}, "C"),
    "library": ({"worker/x.py": "def f():\n    from torchvision import models\n"}, "worker/x.py"),
    "launcher": (
        {"launchers/flux/site.py": "", "cli/run.py": "if hosts.launcher == 'flux': ...\n"},
        "cli/run.py",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_holds(rule: str) -> None:
    assert RULES[rule](sources()) == set()


@pytest.mark.parametrize("place", MAY_ASK_FOR_THE_KIND)
def test_who_may_ask_for_the_kind_does(place: str) -> None:
    assert any(path.startswith(place) for path in questions_of_kind(sources()))


@pytest.mark.parametrize("rule", RULES)
def test_a_planted_violation_is_found(rule: str) -> None:
    files, found = PLANTED[rule]
    assert RULES[rule](files) >= {found}


def test_most_functions_are_short() -> None:
    assert median(lines for _, lines in functions(sources())) <= MEDIAN_FUNCTION_LINES


def test_nothing_but_code_and_its_data_lies_in_the_package() -> None:
    known = {
        ".py",
        ".toml",
        ".yaml",
        ".html",
        ".json",
        ".csv",
        ".css",
        ".js",
        ".npz",
        ".typed",
        ".txt",
        ".pyc",
    }
    assert {path.suffix for path in PACKAGE.rglob("*") if path.is_file()} <= known
