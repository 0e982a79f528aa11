"""Fetching a data set once: from a real server on this machine, with archives that the tests make."""

from __future__ import annotations

import errno
import hashlib
import io
import pickle
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.datasets import download
from gpuproof.datasets.download import Archive, fetch, fetch_file
from gpuproof.datasets.downloaded import CIFARS, prepare_cifar
from gpuproof.records.dataset_files import read_header
from records_by_hand import case

FOLDER = "cifar-100-python"


def archive_of(*members: tarfile.TarInfo | tuple[str, bytes], mode: str = "w:gz") -> bytes:
    """Pack members: whole entries as they are, or names with their content."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as tar:  # type: ignore[call-overload]
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return packed.getvalue()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def pickled(num_images: int) -> bytes:
    pixels = np.zeros((num_images, 3072), dtype=np.uint8)
    return pickle.dumps({b"data": pixels, b"fine_labels": [5] * num_images}, 2)


GOOD = archive_of((f"{FOLDER}/train", pickled(2)), (f"{FOLDER}/test", pickled(1)), (f"{FOLDER}/meta", b"x"))


@dataclass
class Server:
    """What the server serves, and what it was asked."""

    content: bytes = GOOD
    status: int = 200
    cut_at: int | None = None
    """Close the connection after so many bytes."""
    ranges: bool = True
    encoding: str | None = None
    asked: list[str | None] = field(default_factory=list)
    address: str = ""

    def archive(self, checksum: str | None = None) -> Archive:
        return Archive(
            url=f"{self.address}/mirror/set.tar.gz",
            checksum=checksum or f"sha256:{hashlib.sha256(self.content).hexdigest()}",
        )


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            served.asked.append(wanted)
            begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and served.ranges else 0
            if served.status != 200 or begin >= len(served.content):
                self.send_error(served.status if served.status != 200 else 416)
                return
            body = served.content[begin:]
            self.send_response(206 if begin else 200)
            if served.encoding:
                self.send_header("Content-Encoding", served.encoding)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: served.cut_at])

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        served.address = f"http://127.0.0.1:{listening.server_port}"
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield served
        listening.shutdown()


def quiet(_line: str) -> None:
    """Hear, and say nothing."""


def left_in(folder: Path) -> set[str]:
    """Return what a fetch left beside the data set."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")} - {FOLDER}


def test_what_is_fetched_lies_in_place_and_nothing_beside_it(server: Server, tmp_path: Path) -> None:
    said: list[str] = []
    place = fetch(server.archive(), tmp_path / "new", folder=FOLDER, say=said.append)
    assert sorted(path.name for path in place.iterdir()) == ["meta", "test", "train"]
    assert (place / "train").read_bytes() == pickled(2)
    assert left_in(tmp_path / "new") == set()
    assert server.address in said[0]
    assert "unpacking" in said[-1]


def test_a_case_that_asks_for_it_gets_it_and_asks_only_once(server: Server, tmp_path: Path) -> None:
    checksum = f"md5:{hashlib.md5(GOOD).hexdigest().upper()}"
    wanted = {"download": True, "download_url": server.archive().url, "download_checksum": checksum}
    data = case(data={"name": "CIFAR100", "path": str(tmp_path), **wanted}).model_work.data
    for name in ("a.tensors", "b.tensors"):
        prepare_cifar(tmp_path / name, data, say=quiet)
        assert read_header(tmp_path / name)[0].shape == (2, 3, 32, 32)
    assert len(server.asked) == 1


def test_the_authors_archives_are_known_by_their_checksums() -> None:
    archives = {name: (found.archive.name, found.archive.checksum) for name, found in CIFARS.items()}
    assert archives == {
        "CIFAR10": ("cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
        "CIFAR100": ("cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"),
    }
    mirror = CIFARS["CIFAR10"].archive.replaced_by("http://m/c.tgz", None)
    assert (mirror.url, mirror.checksum) == ("http://m/c.tgz", CIFARS["CIFAR10"].archive.checksum)


def test_a_single_file_is_fetched_as_it_is_and_only_if_it_is_the_right_one(
    server: Server, tmp_path: Path
) -> None:
    server.content = b"a single file"
    with pytest.raises(EnvironmentUnfitError, match="it was removed"):
        fetch_file(server.archive(f"md5:{32 * '0'}"), tmp_path, say=quiet)
    assert left_in(tmp_path) == set()
    for _ in range(2):
        assert fetch_file(server.archive(), tmp_path, say=quiet).read_bytes() == b"a single file"
    assert (left_in(tmp_path), len(server.asked)) == ({"set.tar.gz"}, 2)


def test_two_that_ask_at_once_fetch_it_once(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor() as threads:
        jobs = [threads.submit(fetch, server.archive(), tmp_path, folder=FOLDER, say=quiet) for _ in range(4)]
        assert {job.result() for job in jobs} == {tmp_path / FOLDER}
    assert len(server.asked) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_said_and_gone_on_with(
    ranges: bool, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "BLOCK_BYTES", 10)
    server.cut_at, server.ranges = 100, ranges
    with pytest.raises(EnvironmentUnfitError, match="broke after 100 B of") as caught:
        fetch(server.archive(), tmp_path, folder=FOLDER, say=quiet)
    assert "the partial download" in str(caught.value)
    assert left_in(tmp_path) == {f".{FOLDER}.part"}
    server.cut_at = None
    assert (fetch(server.archive(), tmp_path, folder=FOLDER, say=quiet) / "train").is_file()
    assert server.asked == [None, "bytes=100-"]
    assert left_in(tmp_path) == set()


def test_an_archive_that_the_server_calls_encoded_arrives_as_it_is(server: Server, tmp_path: Path) -> None:
    server.encoding = "x-gzip"
    assert (fetch(server.archive(), tmp_path, folder=FOLDER, say=quiet) / "train").is_file()


def test_a_python_without_the_filter_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(EnvironmentUnfitError, match=r"cannot safely unpack .*Use Python 3\.11\.4 or newer"):
        fetch(server.archive(), tmp_path, folder=FOLDER, say=quiet)
    assert left_in(tmp_path) == {f".{FOLDER}.part"}


def test_what_had_arrived_whole_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / f".{FOLDER}.part").write_bytes(GOOD)
    assert (fetch(server.archive(), tmp_path, folder=FOLDER, say=quiet) / "train").is_file()


def test_a_wrong_checksum_is_said_with_both_and_nothing_is_unpacked(server: Server, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError) as caught:
        fetch(server.archive("md5:" + "0" * 32), tmp_path, folder=FOLDER, say=quiet)
    said = str(caught.value)
    assert f"has md5 {hashlib.md5(GOOD).hexdigest()}, expected {'0' * 32}" in said
    assert "data.download_checksum" in said
    assert left_in(tmp_path) == set()
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.promise("S1.18")
@pytest.mark.parametrize("address", ["http://127.0.0.1:1/set.tar.gz", "http://nowhere.invalid/set.tar.gz"])
def test_without_a_network_it_is_said_how_to_place_the_files(address: str, tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    with pytest.raises(EnvironmentUnfitError, match="cannot be downloaded") as caught:
        fetch(Archive(url=address, checksum="md5:0"), folder, folder=FOLDER, say=quiet)
    assert address in str(caught.value)
    assert f"unpack it with `tar -xf set.tar.gz -C '{folder}'`" in str(caught.value)
    assert f"for a container, mount the folder {folder}" in str(caught.value)


def test_a_server_that_does_not_have_it_is_quoted(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(EnvironmentUnfitError, match="the server responded with 404 Not Found"):
        fetch(server.archive(), tmp_path, folder=FOLDER, say=quiet)
    assert left_in(tmp_path) == set()


def test_a_full_disk_is_said_and_given_back(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        (tmp_path / f".{FOLDER}.part").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pooch.HTTPDownloader", lambda **_: full)
    with pytest.raises(EnvironmentUnfitError, match="the disk is full; the partial download is removed"):
        fetch(server.archive(), tmp_path, folder=FOLDER, say=quiet)
    assert left_in(tmp_path) == set()


BAD = [
    ((f"{FOLDER}/../../evil", b"x"), "is outside"),
    (("/evil", b"x"), "is outside"),
    (("elsewhere/evil", b"x"), "is outside"),
    ((f"/{FOLDER}/evil", b"x"), "is outside"),
    (special(f"{FOLDER}/link", tarfile.SYMTYPE, "/etc/passwd"), "neither a file nor a folder"),
    (special(f"{FOLDER}/hard", tarfile.LNKTYPE, f"{FOLDER}/train"), "neither a file nor a folder"),
    (special(f"{FOLDER}/device", tarfile.CHRTYPE), "neither a file nor a folder"),
]


@pytest.mark.parametrize(("member", "said"), BAD)
def test_an_archive_that_reaches_outside_writes_nothing(
    member: tarfile.TarInfo | tuple[str, bytes], said: str, server: Server, tmp_path: Path
) -> None:
    server.content = archive_of((f"{FOLDER}/train", b"good"), member)
    target = tmp_path / "data"
    with pytest.raises(EnvironmentUnfitError, match=said):
        fetch(server.archive(), target, folder=FOLDER, say=quiet)
    assert not (target / FOLDER).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    assert not list(target.rglob("evil"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"no archive at all", "not a tar archive"),
        (GOOD[:-200], "not a tar archive"),
        (archive_of(), "does not contain a folder"),
    ],
    ids=["text", "torn", "empty"],
)
def test_what_is_no_archive_is_said(content: bytes, said: str, server: Server, tmp_path: Path) -> None:
    (tmp_path / f".{FOLDER}.part").write_bytes(content)
    server.content = content
    with pytest.raises(EnvironmentUnfitError, match=said):
        fetch(server.archive(), tmp_path, folder=FOLDER, say=quiet)
    assert not (tmp_path / FOLDER).exists()
