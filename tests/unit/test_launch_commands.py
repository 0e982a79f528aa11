"""What is started for a case, word by word: one rank, several, over hosts, forked, under torchrun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuproof.launchers.commands import (
    INSTALLED_WORKER,
    NodeSide,
    Rendezvous,
    commands_for,
    rank_environment,
)
from gpuproof.records.case import Case
from gpuproof.records.work.window import MonitorSpec
from records_by_hand import case

HERE = NodeSide(python="/usr/bin/python3", worker=INSTALLED_WORKER, run="/runs/a b", host="box", pid=7)
THERE = NodeSide(python="/opt/my py", worker=("/t/g.pyz",), run="/t/run", host="box", pid=7)
MONITORED = replace(case(), monitor=MonitorSpec(interval_s=0.5, host_interval_s=2.0))
FORKED = replace(MONITORED, start="fork", work=case(parallel={"threads_per_rank": 3}).work)
TORCHRUN = "-m torch.distributed.run --nnodes={} --node-rank={} --nproc-per-node={} --rdzv-backend=static"
HERE_RANK = "run '/runs/a b/cases/main/0/spec.json' '/runs/a b/cases/main/0' --parent-pid=7"
THERE_RANK = "run /t/run/cases/main/0/spec.json /t/run/cases/main/0 --parent-pid=7"


@pytest.mark.parametrize(
    ("asked", "node", "rendezvous", "expected"),
    [
        (case(), HERE, Rendezvous(), [f"/usr/bin/python3 -m gpuproof.worker {HERE_RANK}"]),
        (
            MONITORED,
            HERE,
            Rendezvous(),
            [
                f"/usr/bin/python3 -m gpuproof.worker {HERE_RANK}",
                "/usr/bin/python3 -m gpuproof.worker sample "
                "'--out=/runs/a b/cases/main/0/monitor-box.jsonl' --interval=0.5 --host-interval=2 "
                "--parent-pid=7",
            ],
        ),
        (
            case(nproc=2),
            HERE,
            Rendezvous(port=29500),
            [
                f"/usr/bin/python3 {TORCHRUN.format(1, 0, 2)} --master-addr=127.0.0.1 --master-port=29500 "
                "--log-dir=/dev/null "
                f"-m gpuproof.worker {HERE_RANK}"
            ],
        ),
        (case(), THERE, Rendezvous(), [f"'/opt/my py' /t/g.pyz {THERE_RANK}"]),
        (
            case(nproc=2, placement={"num_hosts": 3}),
            THERE,
            Rendezvous(node_rank=2, address="10.0.0.1", port=4711),
            [
                f"'/opt/my py' {TORCHRUN.format(3, 2, 2)} --master-addr=10.0.0.1 --master-port=4711 "
                "--log-dir=/dev/null "
                f"/t/g.pyz {THERE_RANK}"
            ],
        ),
        (
            FORKED,
            THERE,
            Rendezvous(),
            [
                "# forked by: '/opt/my py' /t/g.pyz serve-cases /t/run --threads=3",
                f"'/opt/my py' /t/g.pyz {THERE_RANK}",
                "'/opt/my py' /t/g.pyz sample --out=/t/run/cases/main/0/monitor-box.jsonl --interval=0.5 "
                "--host-interval=2 --parent-pid=7",
            ],
        ),
    ],
)
def test_command_lines(asked: Case, node: NodeSide, rendezvous: Rendezvous, expected: list[str]) -> None:
    assert commands_for(asked, node, rendezvous).text.splitlines() == expected


def test_what_a_server_is_asked_for_has_no_python_and_a_sampler_no_parent() -> None:
    rank, sampler = commands_for(FORKED, HERE, Rendezvous()).forked
    assert rank == [
        *("run", "/runs/a b/cases/main/0/spec.json", "/runs/a b/cases/main/0", "--parent-pid=7"),
    ]
    assert sampler == [
        *("sample", "--out=/runs/a b/cases/main/0/monitor-box.jsonl", "--interval=0.5", "--host-interval=2"),
    ]


def test_one_rank_of_a_users_launcher_is_neither_forked_nor_started_by_an_agent() -> None:
    commands = commands_for(FORKED, HERE, Rendezvous(), attached_launch=3)
    assert commands.server is None
    assert commands.started[0][-2:] == ["--parent-pid=7", "--attached=3"]


def test_several_ranks_are_not_forked() -> None:
    several = replace(FORKED, placement=replace(FORKED.placement, num_hosts=2))
    assert commands_for(several, THERE, Rendezvous(port=1)).server is None


def test_the_environment_of_a_rank() -> None:
    assert rank_environment() == {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "8", "PYTHONSAFEPATH": "1"}
    assert rank_environment("eth 0") == {
        **rank_environment(),
        "GLOO_SOCKET_IFNAME": "eth 0",
        "NCCL_SOCKET_IFNAME": "eth 0",
    }
