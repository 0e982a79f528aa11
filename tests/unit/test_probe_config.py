"""What a recipe may ask of a probe: its case, and every refusal with its place."""

from __future__ import annotations

from typing import get_args

import pytest

from gpuproof.config.load import load_config
from gpuproof.config.rules.base import Facts
from gpuproof.config.settings import ConfigError
from gpuproof.records.case import Case, ProbeWork
from gpuproof.records.codec import from_json, to_json
from gpuproof.records.work.probe import ProbeName
from gpuproof.suites.base import HostPlace
from gpuproof.suites.probe import SUITE
from planning import next_cases

HERE = Facts(hosts=())
NEEDED = {"storage": ["--probe.storage.folder=/tmp"], "overlap": ["--distributed.nproc=2"]}


@pytest.mark.parametrize("name", get_args(ProbeName))
def test_each_probe_is_a_case_that_survives_json(name: str) -> None:
    words = [f"--probe.name={name}", *NEEDED.get(name, [])]
    (case,) = next_cases(load_config("probe", words, facts=HERE).config)
    assert isinstance(case.work, ProbeWork)
    assert case.work.probe.name == name
    assert from_json(Case, to_json(case), place="case") == case


def test_sizes_of_links_go_up() -> None:
    words = ["--probe.link.min_bytes=1K", "--probe.link.max_bytes=1M", "--probe.link.factor=16"]
    (case,) = next_cases(load_config("probe", words, facts=HERE).config)
    assert isinstance(case.work, ProbeWork)
    assert case.work.probe.link.sizes_bytes == (2**10, 2**14, 2**18)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--probe.name=storage"], "only writes to a folder that you specify"),
        (["--probe.name=overlap"], "no other rank to communicate with"),
        (["--distributed.nproc=2"], "from one rank"),
        (["--probe.pattern.passes=2"], "it belongs to the probe pattern, but probe.name is link"),
        (["--probe.link.min_bytes=1G", "--probe.link.max_bytes=1M"], "is above the largest"),
        (["--training.precision=bf16"], "unknown key when kind is probe"),
        (["--matrix.data.batch_size=[1, 2]"], "probes cannot be swept"),
        (
            ["--kind=training", "--probe.name=pattern"],
            "unknown key when kind is training: it belongs to kind probe",
        ),
        (["--probe.name=pattern", "--probe.pattern.memory_share=1"], "memory_share"),
        (["--probe.name=nccl_tests", "--probe.nccl_tests.program=rm -rf"], "program"),
        (
            ["--probe.name=storage", *NEEDED["storage"], "--probe.storage.block_bytes=1000"],
            "multiple of 4096",
        ),
    ],
)
def test_what_cannot_be_probed_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config("probe", words, facts=HERE)


def test_fp64_is_for_plain_products() -> None:
    words = ["--kind=inference", "--training.precision=fp64"]
    with pytest.raises(ConfigError, match="fp64 is for plain matrix products"):
        load_config("quick", words, facts=HERE)
    load_config("quick", [*words, "--model.name=gemm", "--data.name=synthetic"], facts=HERE)


def test_each_host_has_launches_of_its_own_and_a_job_over_all_has_one() -> None:
    places = (HostPlace(name="a"), HostPlace(name="b", num_devices=4))
    words = ["--probe.name=fingerprint", "--run.repeats=2"]
    each = SUITE.begin(load_config("probe", words).config, places)
    cases = list(each.next(()))
    assert [(case.case_id, case.replicate) for case in cases] == [
        ("main@a", 0),
        ("main@b", 0),
        ("main@a", 1),
        ("main@b", 1),
    ]
    assert [case.placement.ranks_per_host for case in cases[:2]] == [1, 4]
    (job, _) = SUITE.begin(load_config("probe", [*words, "--distributed.nodes=2"]).config, places).next(())
    assert job.placement.hosts == ("a", "b")
