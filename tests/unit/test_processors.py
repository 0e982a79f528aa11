"""Affinity, quota and the user's own number decide how many threads there are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuproof.processes.granted import (
    AGENT_MARK,
    cpu_quota,
    reason_fewer_threads,
    threads_per_rank,
    usable_cpus,
    users_threads,
)


def system(root: Path, groups: str, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        # The job's group leaves to its steps what they want; the least of all counts.
        ("0::/job/step\n", {"job/cpu.max": "200000 100000\n", "job/step/cpu.max": "max 100000\n"}, 2.0),
        # Inside a container the kernel's path does not exist: the group is the root that is seen.
        ("0::/kubepods/pod1\n", {"cpu.max": "50000 100000\n"}, 0.5),
        (
            "4:memory:/a\n1:cpu:/\n0::/\n",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
        (
            "3:cpu,cpuacct:/docker/x\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "300000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            3.0,
        ),
        ("4:memory:/a\n", {"memory/a/cpu.cfs_quota_us": "1", "memory/a/cpu.cfs_period_us": "1"}, None),
        ("0::/\n", {"cpu.max": "what is this\n"}, None),
    ],
)
def test_the_quota_is_the_least_of_the_groups(
    tmp_path: Path, groups: str, files: dict[str, str], expected: float | None
) -> None:
    assert cpu_quota(system(tmp_path, groups, **files)) == expected


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


def test_threads_are_whole_processors_of_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuproof.processes.granted.cpus_allowed", lambda: 8)
    for quota, usable, why in ((None, 8, None), (0.5, 1, "0.5 of 8"), (2.5, 2, "2.5 of 8"), (16.0, 8, None)):
        monkeypatch.setattr("gpuproof.processes.granted.cpu_quota", lambda quota=quota: quota)
        assert usable_cpus() == usable
        said = reason_fewer_threads(None)
        assert said is None if why is None else why in str(said)
        assert threads_per_rank(None, num_ranks=2, users=None) == max(1, usable // 2)
        assert threads_per_rank(None, num_ranks=1, users=1) == 1
        assert threads_per_rank(5, num_ranks=1, users=1) == 5  # the recipe's word is above the shell's
        assert threads_per_rank(None, num_ranks=1, users=99) == usable


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, None), ("3", 3), ("4,2", 4), ("0", None), ("-1", None), ("many", None), ("", None)],
)
def test_the_users_threads_are_a_number(text: str | None, expected: int | None) -> None:
    assert users_threads({} if text is None else {"OMP_NUM_THREADS": text}) == expected


@pytest.mark.parametrize("users", [None, "3"])
def test_what_torchrun_set_is_not_the_users(users: str | None) -> None:
    """A stand-in for the agent: it starts its child as torchrun starts ranks, two processes deep."""
    inner = "from gpuproof.processes.granted import users_threads; print(users_threads())"
    middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    agent = (
        "import os, subprocess, sys\n"
        f"env = {{'OMP_NUM_THREADS': '1', **os.environ, {AGENT_MARK!r}: 'none'}}\n"
        f"subprocess.run([sys.executable, '-c', {middle!r}], check=True, env=env)"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", AGENT_MARK)}
    if users is not None:
        environment["OMP_NUM_THREADS"] = users
    done = subprocess.run(
        [sys.executable, "-c", agent], env=environment, text=True, capture_output=True, check=True
    )
    assert done.stdout.strip() == str(users)
