"""Every way in which samples reach a run, by the real command; and every way in which they do not."""

from __future__ import annotations

import hashlib
import http.server
import io
import pickle
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from gpuproof.base.errors import ExitCode
from gpuproof.records.run import Evaluation, Failure, Phase, RankResult, Setup, Steps, Window
from integration.conftest import Run
from ports import free_ports
from running import MEASURED, clean_environment, gpuproof_command, run_directory
from waiting import PATIENCE_S, eventually

LENET = ("--data.name=digits", "--data.image_size=16", "--distributed.threads_per_rank=1")
NO_IMAGES = ("--data.image_size=null", "--model.num_classes=null")
LOADER = ("--data.loading=loader", "--data.num_workers=2", "--data.prefetch_factor=2")
TINY_DECODER = {
    **{"seq_len": 8, "vocab_size": 90, "d_model": 8, "d_ff": 16},
    **{"num_layers": 1, "num_heads": 2, "num_kv_heads": 1},
}
DRAWN = ("--data.image_size=16", "--distributed.threads_per_rank=1")


def stderr_of(run: Run, rank: int = 0) -> str:
    return (run.folder() / f"stderr-{rank}.txt").read_text()


def children(run: Run) -> list[int]:
    """Return the processes of the loader: forked, so that their command is that of their parent, a rank."""
    processes = {process.pid: process for process in run.processes()}
    found = []
    for pid, process in processes.items():
        with suppress(psutil.Error):  # it may have ended since
            parent = processes.get(process.ppid())
            if parent is not None and parent.info["cmdline"] == process.info["cmdline"]:
                found.append(pid)
    return found


def test_a_loader_of_images_is_measured_with_its_wait(a_run: Run) -> None:
    for name, colour in {"cat": (255, 0, 0), "dog": (0, 0, 255)}.items():
        folder = a_run.command_line.folder / "images" / "train" / name
        folder.mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (40, 30), colour).save(folder / f"{i}.jpg")
    own = ["--data.name=ImageFolder", "--data.path=images", "--data.image_size=8", "--model.num_classes=2"]
    asked = [*own, *LOADER, "--benchmark.evaluate_after=true", "--distributed.threads_per_rank=1"]
    done = a_run.run("simple_cnn", *asked, steps=12)
    assert done.returncode in MEASURED, done.stderr
    assert stderr_of(a_run) == ""
    assert a_run.all_gone()
    records = a_run.case()
    (window,), (setup,) = records.of(Window), records.of(Setup)
    measured = [steps for steps in records.of(Steps) if steps.phase == "measure"]
    assert window.data_wait_s == pytest.approx(sum(steps.data_wait_s or 0.0 for steps in measured), abs=1e-6)
    assert window.data_wait_s is not None
    assert 0.0 < window.data_wait_s <= window.steps_s
    used = setup.data_used
    assert used is not None
    assert (used.num_samples, used.loading, used.split, used.batches_ahead) == (12, "loader", "train", 3)
    assert used.sha256_of == "names and sizes of all files"
    (evaluation,) = records.of(Evaluation)
    assert (evaluation.samples, evaluation.accuracy is None) == (12, False)
    assert "waited for data" in a_run.report()


def test_two_ranks_with_a_loader_each_over_tokens(a_run: Run) -> None:
    ids = np.arange(2_000, dtype="<u2") % 90
    ids.tofile(a_run.command_line.folder / "ids.bin")
    words = [
        "--data.name=tokens",
        "--data.path=ids.bin",
        *NO_IMAGES,
        *LOADER,
        "--data.persistent_workers=false",
    ]
    done = a_run.run("decoder", *words, "--nproc=2", steps=4, **TINY_DECODER)
    assert done.returncode in MEASURED, done.stderr
    assert a_run.all_gone()
    setups, windows = a_run.case().of(Setup), a_run.case().of(Window)
    digest = hashlib.sha256(ids.tobytes()).hexdigest()
    assert {s.data_used.sha256 for s in setups if s.data_used} == {digest}
    assert len(windows) == 2
    assert all(window.data_wait_s is not None for window in windows)


def test_a_killed_process_of_the_loader_is_named_and_leaves_nothing(a_run: Run) -> None:
    process = a_run.start("lenet5", *LENET, *LOADER, steps=1_000_000)
    a_run.record(Phase)
    eventually("two processes of the loader", lambda: len(children(a_run)) == 2)
    a_run.record(Steps)
    victim = children(a_run)[0]
    subprocess.run(["kill", "-KILL", str(victim)], check=True)
    ended = a_run.command_line.finish(process)
    assert ended.returncode == ExitCode.FAILED, ended.stderr
    (failure,) = a_run.case().of(Failure)
    assert failure.cause == "exception"
    assert f"process {victim} ended with SIGKILL" in failure.message
    assert failure.traceback is None
    assert "Traceback" not in stderr_of(a_run)
    assert a_run.all_gone()


def test_when_its_rank_is_killed_the_loader_ends_with_it(a_run: Run) -> None:
    process = a_run.start("lenet5", *LENET, *LOADER, steps=1_000_000)
    a_run.record(Steps)
    loader = children(a_run)
    (rank,) = {p.ppid() for p in a_run.processes() if p.pid in loader}
    subprocess.run(["kill", "-KILL", str(rank)], check=True)
    a_run.command_line.finish(process)
    assert a_run.all_gone()
    assert a_run.case().status == "unfinished"


def test_too_little_shared_memory_is_said_with_the_remedy(a_run: Run) -> None:
    words = a_run.words("lenet5", *DRAWN, *LOADER, "--data.batch_size=256", steps=2)
    small = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'
    ended = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", small, "sh", *gpuproof_command(*words)],
        cwd=a_run.command_line.folder,
        env=dict(a_run.command_line.environment),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode in (ExitCode.UNFIT_ENVIRONMENT, ExitCode.FAILED), ended.stderr
    (failure,) = a_run.case().of(Failure)
    assert failure.cause == "environment"
    assert "ran out of shared memory" in failure.message
    assert "--shm-size" in (failure.next_step or "")
    assert a_run.all_gone()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--data.name=CIFAR100"],
            "CIFAR-100 is missing: expected the file nowhere/cifar-100-python",
        ),
        (["--data.name=CIFAR10"], "expected the file nowhere/cifar-10-batches-py/data_batch_1"),
        (["--data.name=ImageFolder"], "expected one folder per class in nowhere/train"),
        (["--data.name=tokens", "--model.name=decoder"], "expected the file nowhere"),
    ],
)
@pytest.mark.parametrize("loading", ["device", "loader"])
def test_without_its_data_a_run_measures_nothing(
    words: list[str], said: str, loading: str, a_run: Run
) -> None:
    asked = ["--model.num_classes=100", "--data.path=nowhere", f"--data.loading={loading}"]
    asked = asked[1:] if "decoder" in words[-1] else asked
    ended = a_run.run("simple_cnn", *asked, *words, steps=2)
    assert ended.returncode == ExitCode.USAGE, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(a_run.root.glob("cases/*"))


# --- downloads -------------------------------------------------------------------------------------------


@cache
def cifar_archive() -> bytes:
    """Return the archive, packed once: its bytes hold the second in which that was."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, count in (("train", 16), ("test", 8)):
            pixels = np.random.default_rng(0).integers(0, 256, (count, 3072), dtype=np.uint8)
            content = pickle.dumps({b"data": pixels, b"fine_labels": [i % 100 for i in range(count)]}, 2)
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    """A server of this machine that has the archive; what it was asked is in `asked.txt`."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    (folder / "cifar.tar.gz").write_bytes(cifar_archive())

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            with (folder / "asked.txt").open("a") as log:
                log.write(f"{self.path}\n")

    serving = partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serving) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def cifar_words(address: str, checksum: str) -> list[str]:
    words = ["--data.name=CIFAR100", "--data.path=data", "--data.image_size=8", "--model.num_classes=100"]
    words += ["--data.download=true", f"--data.download_url={address}"]
    return [*words, f"--data.download_checksum={checksum}", "--distributed.threads_per_rank=1"]


@pytest.mark.promise("S1.13", "F1.16")
def test_a_data_set_is_fetched_once_and_its_other_part_is_there_too(
    a_run: Run, mirror: str, tmp_path: Path
) -> None:
    checksum = f"md5:{hashlib.md5(cifar_archive()).hexdigest()}"
    words = cifar_words(f"{mirror}/cifar.tar.gz", checksum)
    done = a_run.run("simple_cnn", *words, "--data.split=test", steps=2)
    assert done.returncode in MEASURED, done.stderr
    assert f"downloading {mirror}/cifar.tar.gz" in done.stderr
    (setup,) = a_run.case().of(Setup)
    assert setup.data_used is not None
    assert (setup.data_used.num_samples, setup.data_used.split) == (8, "test")
    assert (tmp_path / "mirror" / "asked.txt").read_text() == "/cifar.tar.gz\n"
    assert (a_run.command_line.folder / "data" / "cifar-100-python" / "train").is_file()


@pytest.mark.parametrize(
    ("name", "checksum", "said"),
    [
        ("absent.tar.gz", "md5:" + "0" * 32, "the server responded with 404"),
        ("cifar.tar.gz", "md5:" + "0" * 32, "expected " + "0" * 32),
    ],
)
def test_what_cannot_be_fetched_is_one_paragraph_and_nothing_is_measured(
    name: str, checksum: str, said: str, a_run: Run, mirror: str
) -> None:
    ended = a_run.run("simple_cnn", *cifar_words(f"{mirror}/{name}", checksum), steps=2)
    assert ended.returncode == ExitCode.UNFIT_ENVIRONMENT, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(a_run.root.glob("cases/*"))


# --- a launch by hand, without a shared disk ----------------------------------------------------------------


def test_a_host_that_does_not_see_rank_0s_disk_uses_its_own_copy(tmp_path: Path) -> None:
    folders = [tmp_path / "rank 0", tmp_path / "rank 1"]
    port = str(free_ports())
    words = ["run", "quick", "--model.name=decoder", "--data.name=tokens", "--data.path=ids.bin"]
    words += [f"--model.options.{name}={value}" for name, value in TINY_DECODER.items()]
    words += ["--data.image_size=null", "--model.num_classes=null", "--benchmark.measure_by=steps"]
    words += ["--benchmark.measure_steps=3", "--data.batch_size=4", "--run.repeats=1", "--run.run_id=o"]
    hide = f"mount -t tmpfs none '{folders[0]}' && cd '{folders[1]}' && exec \"$@\""
    started = []
    for rank, folder in enumerate(folders):
        folder.mkdir()
        (np.arange(2_000, dtype="<u2") % 90).tofile(folder / "ids.bin")
        command = gpuproof_command(*words)
        if rank == 1:
            command = ["unshare", "--mount", "--map-root-user", "sh", "-c", hide, "sh", *command]
        variables = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        started.append(
            subprocess.Popen(
                command,
                cwd=folder,
                env=clean_environment(**variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=PATIENCE_S) for process in started]
    assert [process.returncode in MEASURED for process in started] == [True, True], outputs
    (records,) = run_directory(folders[0], "o").cases()
    assert {result.rank for result in records.of(RankResult)} == {0, 1}
    assert len({setup.data_used.sha256 for setup in records.of(Setup) if setup.data_used}) == 1
