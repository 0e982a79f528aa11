"""The exporter over TLS, behind a password, and as a file; and what it refuses to be started with."""

from __future__ import annotations

import base64
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import recordings as rec
from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.observe.prometheus.access import read_access
from gpuproof.observe.prometheus.exporter import MOST_CONNECTIONS, RunningExporter, serve, serve_textfile
from waiting import eventually


def records() -> Generator[Any, None, None]:
    yield rec.header([rec.identity(0)], fast_interval_s=600.0)  # so that nothing is stale before it is read
    yield rec.sample(0, {0: {"power_w": 300.0}})
    while True:
        yield None
        time.sleep(0.05)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    assert shutil.which("openssl")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("scraper:with a:colon\n", encoding="utf-8")
    path.chmod(0o600)
    return path


@pytest.fixture
def guarded(pair: tuple[Path, Path], password: Path) -> Iterator[RunningExporter]:
    access = read_access(certificate=pair[0], key=pair[1], password_file=password)
    running = serve(records(), address="127.0.0.1", port=0, access=access)
    yield running
    running.stop()


def asked(running: RunningExporter, certificate: Path, credentials: str | None) -> tuple[int, str]:
    request = urllib.request.Request(running.url)
    if credentials is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(credentials.encode()).decode())
    context = ssl.create_default_context(cafile=str(certificate))
    try:
        with urllib.request.urlopen(request, timeout=300, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_only_who_knows_the_password_is_answered_over_tls(
    guarded: RunningExporter, pair: tuple[Path, Path]
) -> None:
    assert guarded.url.startswith("https://127.0.0.1:")
    assert asked(guarded, pair[0], None)[0] == 401
    for wrong in ("scraper:with a", "other:with a:colon", "", "é:è"):
        status, text = asked(guarded, pair[0], wrong)
        assert (status, "gpuproof_" in text) == (401, False)
    status, text = asked(guarded, pair[0], "scraper:with a:colon")
    assert (status, "gpuproof_sampler_up" in text) == (200, True)


def test_one_client_that_says_nothing_does_not_hold_up_the_others(
    guarded: RunningExporter, pair: tuple[Path, Path]
) -> None:
    with socket.create_connection(("127.0.0.1", guarded.server.server_port)):
        assert asked(guarded, pair[0], "scraper:with a:colon")[0] == 200


@pytest.fixture
def plainly() -> Iterator[RunningExporter]:
    access = read_access(certificate=None, key=None, password_file=None, hosts=("metrics.site",))
    running = serve(records(), address="127.0.0.1", port=0, access=access)
    yield running
    running.stop()


def status_for(running: RunningExporter, host: str) -> int:
    request = urllib.request.Request(running.url, headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code if "--allowed-host" in error.read().decode() else 0


def test_a_name_that_is_not_ours_is_answered_nothing(plainly: RunningExporter) -> None:
    ours = ("127.0.0.1:9837", "[::1]:9837", "LOCALHOST", "metrics.site.:80", socket.gethostname(), "10.1.2.3")
    strange = ("evil.example:9837", "127.0.0.1.evil.example", "localhost.evil", "metrics.site.evil")
    assert [status_for(plainly, host) for host in ours] == [200] * len(ours)
    assert [status_for(plainly, host) for host in strange] == [403] * len(strange)


def test_connections_are_few_and_end_however_slowly_their_clients_write(
    plainly: RunningExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = plainly.server.server_port
    with ExitStack() as stack:
        held = []
        for _ in range(MOST_CONNECTIONS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=300))
            client.sendall(b"GET /metr")
            held.append(client)
        one_more = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=300))
        assert one_more.recv(1) == b""
        held.pop().shutdown(socket.SHUT_RDWR)  # a place is free again
        monkeypatch.setattr(plainly.server, "connection_s", 0.5)
        while (slow := dripping(port)) is None:
            pass
        assert slow


def dripping(port: int) -> bool | None:
    """Write a byte now and then; say whether that was ended, None where there was no place for it yet."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as client:
        try:
            for sent in range(600):
                client.sendall(b"G")
                client.settimeout(0.05)
                try:
                    if client.recv(1) == b"":
                        return None if sent < 2 else True
                except TimeoutError:
                    continue
        except OSError:
            return None if sent < 2 else True
    return False


def test_what_cannot_guard_is_refused(pair: tuple[Path, Path], password: Path, tmp_path: Path) -> None:
    certificate, key = pair
    with pytest.raises(UsageError, match="must be given together"):
        read_access(certificate=certificate, key=None, password_file=None)
    with pytest.raises(UsageError, match="private key"):
        read_access(certificate=certificate, key=certificate, password_file=None)
    password.chmod(0o644)
    with pytest.raises(UsageError, match="other users can read it"):
        read_access(certificate=certificate, key=key, password_file=password)
    password.chmod(0o600)
    for text in ("", "user", "user:", ":word", "a:b\nc:d"):
        password.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match="does not contain a single line USER:PASSWORD"):
            read_access(certificate=None, key=None, password_file=password)


def test_the_textfile_is_whole_and_says_when_readings_stopped(tmp_path: Path) -> None:
    exporter = serve_textfile(records(), tmp_path)

    def written() -> str:
        exporter.write()
        text = exporter.path.read_text(encoding="utf-8")
        return text if 'gpuproof_gpu_power_watts{host="node7",index="0"' in text else ""

    text = eventually("readings in the file", written)
    (taken,) = [line for line in text.splitlines() if line.startswith("gpuproof_last_sample_timestamp")]
    assert float(taken.split()[1]) == rec.UNIX_S
    exporter.stop()
    assert [line for line in exporter.path.read_text(encoding="utf-8").splitlines() if line[:1] != "#"] == [
        "gpuproof_sampler_up 0.0"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["gpuproof.prom"]


def test_a_folder_that_is_not_there_is_an_error_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match=r"gpuproof\.prom.*--textfile"):
        serve_textfile(records(), tmp_path / "none")
