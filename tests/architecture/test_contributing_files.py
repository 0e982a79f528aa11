"""What contributors' tools run is what `make check` runs, and every target that a workflow names is there."""

from __future__ import annotations

import re
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def test_workflows_name_targets_and_scripts_that_are_there() -> None:
    workflows = list((ROOT / ".github/workflows").glob("*.yml"))
    assert {path.stem for path in workflows} == {"tests", "docs", "release"}
    for path in workflows:
        text = path.read_text()
        targets = re.findall(r"\bmake ([\w-]+)", text)
        assert targets, path
        assert all(re.search(rf"^{target}:", MAKEFILE, re.MULTILINE) for target in targets)
    assert (ROOT / ".ci/run").exists()


def test_pre_commit_runs_every_tool_of_make_check() -> None:
    recipe = MAKEFILE.partition("\ncheck:")[2].partition("\n\n")[0]
    tools = {tool for tool in re.findall(r"\$\(BIN\)/([\w-]+)", recipe) if tool != "python"}
    (repo,) = YAML(typ="safe").load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = {hook["entry"].split()[0].rpartition("/")[2] for hook in repo["hooks"]}
    assert tools
    assert entries == {*tools, "make"}
