"""What a new user mistypes, over all verbs: one paragraph with place, cause, next step; no traceback."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuproof.base.errors import GpuproofError
from gpuproof.cli.main import cli

FILES = {
    "empty.yaml": b"",
    "no_text.yaml": b"\xff\xfe\x00\x01",
    "list.yaml": b"- a\n- b\n",
    "tab.yaml": b"kind:\n\ttraining\n",
    "hosts.yaml": b"hosts:\n  - {hst: a}\n",
    "empty.jsonl": b"",
    "damaged/run.json": b"{",
    "folder/file": b"",
}
MISTAKES = {
    "rnu quick": "No such command 'rnu'. Did you mean 'run'?",
    "run quik": "quik: there is no such file or recipe. Did you mean the recipe quick?",
    "run nothing_like_it": "Give a YAML file's path, or a recipe. The recipes are collectives, ",
    "run folder": "folder: this is a folder, not a config file. Specify the file in it.",
    "run empty.yaml": "empty.yaml:1: the config is empty. Add at least one section, such as `data:`.",
    "run no_text.yaml": "no_text.yaml:1: byte 0xff is not UTF-8 text. Save the file as UTF-8.",
    "run list.yaml": "list.yaml:1: a config is a mapping of sections. Write `section:` and its keys.",
    "run tab.yaml": "tab.yaml:2: a tab in the indentation. Indent with spaces.",
    "run": "Missing CONFIG, a YAML file or the name of a recipe; try: gpuproof run quick",
    "run quick 3": '"3" is not a key of the config. Write --section.key=value',
    "run -quick": "-quick: an option of several letters takes two dashes: --quick",
    "run quick -devices=0": "-devices=0: an option of several letters takes two dashes: --devices=0",
    "run quick --training.precision=bf61": "training.precision: expected one of fp64, fp32",
    "run quick --training.precison=bf16": "training.precison: unknown key; did you mean precision?",
    "run quick --nproc two": "distributed.nproc: expected a whole number from 1 to 1,024",
    "run quick --on slrm": "--on slrm: not a place to run. Use local, ssh:FILE",
    "run quick --on ssh:none.yaml": "none.yaml: cannot be read (No such file or directory). Specify the inv",
    "run quick --on ssh:hosts.yaml": "hosts.yaml:2: hosts.hst: unknown key. Perhaps you mean host.",
    "run --resume folder": "folder: not a run directory: it contains no run.json. `gpuproof runs` lists",
    "run --resume damaged": "It was truncated or changed: `gpuproof runs` lists the runs.",
    "validate --host a": "--host: no such option of validate, nor a recipe key. Perhaps you mean --depl",
    "validate --recipe quik --allow-cpu": "Did you mean the recipe quick?",
    "validate --rules none.yaml": "none.yaml: cannot be read (No such file or directory). Specify the rules",
    "validate --soak 3x": "--soak: '3x' is not a time. Write 90s, 30m, 2h or 1d.",
    "validate --expected-hosts ''": "--expected-hosts: no host is named. Write a,b or name a file.",
    "validate --expected-gpus many": "'many' is not a valid integer range.",
    "validate --allow-cpu --nproc 1 --validate.spares=x": "on the command line --validate.OPTION=VALUE.",
    "monitor exec": "Missing",
    "monitor show folder": "folder: contains no recording named gpu_stats_* (.jsonl, .json or .csv). "
    "Pass the recording's file",
    "monitor show empty.jsonl": "empty.jsonl: is empty. Create one with `gpuproof monitor record`.",
    "report folder": "folder: not a run directory: it contains no run.json. `gpuproof runs` lists",
    "compare folder": "folder: expected two runs to compare, not 1. Give two run directories",
    "compare --ab quick --b.training.precison=bf16": "training.precison: unknown key; did you mean prec",
    "scale --device cpu --max-devices 2 --model huge": "no workload is called 'huge'. Known: decoder",
    "load --output folder": "File 'folder' is a directory.",
    "matrix none.yaml": "none.yaml: there is no such file or recipe. Give a YAML file's path, or",
    "rules check empty.yaml": "empty.yaml:1: there are no rules: a file without rules would pass everything.",
    "baseline record x folder": "folder: not a run directory",
    "kubernetes verify --options none.yaml --dry-run": "none.yaml: cannot be read (No such file",
    "config shema": "No such command 'shema'. Did you mean 'schema'?",
    "plugins nothing": "there is no plug-in called 'nothing'. Known: ab,",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_paragraph_with_what_to_do(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    ended = CliRunner().invoke(cli, shlex.split(line), prog_name="gpuproof")
    error = ended.exception
    assert isinstance(error, GpuproofError | SystemExit), ended.output
    if isinstance(error, GpuproofError):
        assert error.exit_code == 2
        assert MISTAKES[line] in str(error)
        assert str(error).endswith(".")
    else:
        assert ended.exit_code == 2
        assert MISTAKES[line] in ended.output
        assert "Try 'gpuproof" in ended.output
    assert not Path("results").exists()
