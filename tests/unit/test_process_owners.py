"""Whose is a process? Control groups as Kubernetes, Docker and Slurm write them, and what is private."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuproof.monitor.process_owners import INITIAL_PID_NAMESPACE, describer, details_of, owner_of

UID = "0a1b2c3d-1111-2222-3333-444455556666"
ID = "c0ffee" * 10 + "abcd"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to(INITIAL_PID_NAMESPACE)
    (tmp_path / "log/containers").mkdir(parents=True)
    (tmp_path / "log/pods").mkdir()
    return tmp_path


def group(root: Path, text: str, *, environment: str = "") -> dict[str, object]:
    folder = root / "proc/42"
    folder.mkdir(exist_ok=True)
    (folder / "cgroup").write_text(text + "\n", encoding="utf-8")
    (folder / "environ").write_text(environment, encoding="utf-8")
    return describer("owners", proc=root / "proc", logs=root / "log")(42)


SYSTEMD = (
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
    f"cri-containerd-{ID}.scope"
)


def test_a_pod_is_named_by_the_kubelets_logs(root: Path) -> None:
    (root / f"log/containers/train-0_team-a_main-{ID}.log").touch()
    assert group(root, SYSTEMD) == {"pod": "train-0", "namespace": "team-a", "container": "main"}
    by_files = f"9:devices:/kubepods/besteffort/pod{UID}/{ID}\n8:cpu:/kubepods/besteffort/pod{UID}/{ID}"
    assert group(root, by_files) == {"pod": "train-0", "namespace": "team-a", "container": "main"}


def test_without_the_containers_log_the_pods_folder_names_it_else_its_uid(root: Path) -> None:
    assert group(root, SYSTEMD) == {"pod": UID, "container": ID[:12]}
    (root / f"log/pods/team-a_train-0_{UID}").mkdir()
    assert group(root, SYSTEMD) == {"pod": "train-0", "namespace": "team-a", "container": ID[:12]}


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        (f"0::/system.slice/docker-{ID}.scope", {"container": ID[:12]}),
        (f"0::/user.slice/user-1000.slice/libpod-{ID}.scope/container", {"container": ID[:12]}),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", {"slurm_job": "4711"}),
        ("5:devices:/slurm/uid_1000/job_4711/step_batch/task_0", {"slurm_job": "4711"}),
        ("0::/user.slice/user-1000.slice/session-2.scope", {}),
        ("0::/system.slice/job_12.service", {}),
    ],
)
def test_containers_and_batch_jobs_are_read_from_the_control_group(
    root: Path, text: str, owner: dict[str, str]
) -> None:
    assert group(root, text) == owner


def test_a_job_without_a_control_group_of_its_own_is_in_the_environment(root: Path) -> None:
    assert group(root, "0::/", environment="HOME=/root\0SLURM_JOB_ID=7\0") == {"slurm_job": "7"}


def test_a_process_that_is_gone_has_no_owner(root: Path) -> None:
    assert owner_of(43, proc=root / "proc", logs=root / "log") == {}
    assert details_of(43, proc=root / "proc") == {}


def test_in_a_container_with_process_ids_of_its_own_nothing_is_told_of_a_number(root: Path) -> None:
    (root / "proc/self/ns/pid").unlink()
    (root / "proc/self/ns/pid").symlink_to("pid:[4026532000]")
    assert group(root, SYSTEMD) == {}


def test_details_are_told_when_asked_for_and_ids_alone_else(root: Path) -> None:
    folder = root / "proc/42"
    group(root, "0::/")
    numbers = "R 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 98765 1000000 300"
    (folder / "stat").write_text(f"42 (my (prog) 2) {numbers} 0 0\n", encoding="utf-8")
    (folder / "cmdline").write_text("python\0train.py\0--lr\0.1\0", encoding="utf-8")
    told = describer("details", proc=root / "proc", logs=root / "log")(42)
    assert (told["command"], told["started_ticks"]) == ("python train.py --lr .1", 98765)
    assert told["cpu_s"] == 300 / os.sysconf("SC_CLK_TCK")
    assert told["rss_bytes"] == 300 * os.sysconf("SC_PAGE_SIZE")
    (folder / "cmdline").write_text("", encoding="utf-8")
    assert details_of(42, proc=root / "proc")["command"] == "[my (prog) 2]"
    assert describer("ids", proc=root / "proc", logs=root / "log")(42) == {}


def test_this_very_process_is_read() -> None:
    told = details_of(os.getpid(), proc=Path("/proc"))
    assert "python" in told["command"]
    assert told["rss_bytes"] > 1e6
    assert told["cpu_s"] > 0
