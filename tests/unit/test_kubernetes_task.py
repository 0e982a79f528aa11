"""The containers of a pod: which node it is, and what is sent of its files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gpuproof.base.errors import EnvironmentUnfitError, RecordError
from gpuproof.config.settings import ConfigError
from gpuproof.launchers.kubernetes.objects import join_output, take_files
from gpuproof.launchers.kubernetes.options import KubernetesOptions, load_kubernetes_options
from gpuproof.worker.launched import kubernetes_files
from gpuproof.worker.launched.kubernetes_task import main, node_rank


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"JOB_COMPLETION_INDEX": "1"}, 1),
        ({"PET_NODE_RANK": "1", "RANK": "0"}, 1),
        ({"RANK": "0", "WORLD_SIZE": "2"}, 0),
    ],
)
def test_a_pod_takes_its_rank_from_who_started_it(environment: dict[str, str], rank: int) -> None:
    assert node_rank(environment, num_nodes=2) == rank


@pytest.mark.parametrize(
    "environment",
    [{}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"RANK": ""}, {"RANK": "x"}, {"JOB_COMPLETION_INDEX": "2"}],
)
def test_a_pod_that_does_not_know_its_rank_fails(environment: dict[str, str]) -> None:
    with pytest.raises(EnvironmentUnfitError, match="does not know its rank"):
        node_rank(environment, num_nodes=2)


def test_a_pod_that_is_started_again_writes_over_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_NODE_RANK", "1")
    output = tmp_path / "launcher-output-1.txt"
    output.write_text("what the first try printed\n")
    with pytest.raises(EnvironmentUnfitError, match="node 1 of this launch has started before"):
        main([f"--folder={tmp_path}", "--nodes=2", "--", "false"])
    assert output.read_text() == "what the first try printed\n"


def test_files_are_kept_for_a_while_when_a_pod_is_to_go_before_they_were_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            kubernetes_files.send(tmp_path)

    monkeypatch.setattr("signal.signal", lambda number, act: act(number, None))
    monkeypatch.setattr("time.sleep", sleep)
    kubernetes_files.hold(tmp_path, lease_s=1000.0)
    assert len(looks) == 3
    kubernetes_files.hold(tmp_path, lease_s=1000.0)  # they were sent: no need to stay
    assert len(looks) == 3
    (tmp_path / "files.sent").unlink()
    monkeypatch.setattr("time.sleep", looks.append)
    kubernetes_files.hold(tmp_path, lease_s=1000.0)
    assert sum(looks[3:]) == pytest.approx(kubernetes_files.LAST_S, abs=1.0)  # nobody comes: it goes


def test_files_come_over_whole_and_only_into_the_launch_s_folder(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "deep").mkdir(parents=True)
    here.mkdir()
    content = {"rank-0.jsonl": b"a\n" * 99_999, "deep/x": b"\0", "launcher-output-1.txt": b"b\n"}
    for name, held in {**content, "spec.json": b"{}", "launcher-output-0.txt": b"a\n"}.items():
        (there / name).write_bytes(held)
    kubernetes_files.main(["send", f"--folder={there}"])
    sent = capfdbinary.readouterr().out
    take_files(io.BytesIO(sent), here)
    join_output(here)
    assert (here / "rank-0.jsonl").read_bytes() == content["rank-0.jsonl"]
    assert (here / "launcher-output.txt").read_bytes() == b"a\nb\n"
    assert not (here / "spec.json").exists()
    with pytest.raises(RecordError, match="damaged"):
        take_files(io.BytesIO(sent[: len(sent) // 2]), here)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("run_as_user: 0", "pods never run as root"),
        ("engine: trainjob", "needs a claim"),
        ("claim: results", "claim and claim_folder must be set together"),
        ("imag: x", "Perhaps you mean image"),
        ("shm: lots", "not in the form this key requires"),
    ],
)
def test_mistakes_in_the_file_of_options_are_told(tmp_path: Path, text: str, cause: str) -> None:
    path = tmp_path / "k.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=cause):
        load_kubernetes_options(str(path))


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "k.yaml"
    path.write_text("# nothing\n")
    assert load_kubernetes_options(str(path)) == KubernetesOptions()
