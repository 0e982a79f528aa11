"""`gpuproof cloud lambda` against a local server that answers as Lambda's documentation says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuproof.base.errors import GpuproofError, UsageError
from gpuproof.cli.main import cli
from gpuproof.cloud.lambda_cloud import (
    CloudError,
    LambdaCloud,
    LaunchRequest,
    launch_all,
    wait_until_active,
)
from gpuproof.config.inventory import load_inventory
from gpuproof.launchers.registry import HostChoice
from gpuproof.launchers.ssh.site import SshHosts

KEY = "secret_test_4711"
TYPE = {
    "name": "gpu_1x_a100",
    "description": "1x A100 (40 GB PCIe)",
    "gpu_description": "A100 (40 GB PCIe)",
    "price_cents_per_hour": 129,
    "specs": {"vcpus": 30, "memory_gib": 200, "storage_gib": 512, "gpus": 1},
}


class Cloud:
    """What the server knows, and what it was asked."""

    def __init__(self) -> None:
        self.instances: dict[str, dict[str, Any]] = {}
        self.launches: list[dict[str, Any]] = []
        self.polls_until_active = 1
        self.agents: set[str | None] = set()

    def launch(self, body: dict[str, Any]) -> dict[str, Any]:
        self.launches.append(body)
        new = f"i{len(self.launches)}"
        self.instances[new] = {
            "id": new,
            "name": body.get("name"),
            "status": "booting",
            "ssh_key_names": body["ssh_key_names"],
            "file_system_names": [],
            "region": {"name": body["region_name"], "description": "there"},
            "instance_type": TYPE,
            "polls": 0,
        }
        return {"instance_ids": [new]}

    def seen(self, instance_id: str) -> dict[str, Any] | None:
        found = self.instances.get(instance_id)
        if found is None:
            return None
        found["polls"] += 1
        if found["polls"] > self.polls_until_active and found["status"] == "booting":
            found |= {
                "status": "active",
                "ip": f"203.0.113.{instance_id[1:]}",
                "hostname": f"{instance_id}.example",
            }
        return {key: value for key, value in found.items() if key != "polls"}

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if (method, path) == ("GET", "/instances"):
            return 200, {"data": [self.seen(found) for found in self.instances]}
        if (method, path) == ("GET", "/instance-types"):
            full = {"instance_type": {**TYPE, "name": "gpu_8x_h100"}, "regions_with_capacity_available": []}
            room = [{"name": "us-east-1", "description": "Virginia, USA"}]
            free = {"instance_type": TYPE, "regions_with_capacity_available": room}
            return 200, {"data": {"gpu_8x_h100": full, "gpu_1x_a100": free}}
        if (method, path) == ("POST", "/instance-operations/launch"):
            if body["region_name"] == "full":
                told = {
                    "code": "instance-operations/launch/insufficient-capacity",
                    "message": "Not enough capacity.",
                }
                return 400, {"error": {**told, "suggestion": "Choose another region."}}
            return 200, {"data": self.launch(body)}
        if (method, path) == ("POST", "/instance-operations/terminate"):
            ended = [{**self.instances.pop(name), "status": "terminating"} for name in body["instance_ids"]]
            return 200, {"data": {"terminated_instances": ended}}
        found = self.seen(path.removeprefix("/instances/"))
        if found is None:
            return 404, {"error": {"code": "global/object-does-not-exist", "message": "No such instance."}}
        return 200, {"data": found}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    cloud = Cloud()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: Any) -> None:
            if self.headers["Authorization"] == f"Bearer {KEY}":
                status, answer = cloud.answer(self.command, self.path, body)
            else:
                told = {
                    "code": "global/invalid-api-key",
                    "message": "API key was invalid, expired, or deleted.",
                }
                status, answer = 403, {"error": told}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("LAMBDA_API_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("LAMBDA_API_KEY", KEY)
    monkeypatch.setattr("gpuproof.cloud.lambda_cloud.LAUNCH_SPACING_S", 0.0)
    monkeypatch.setattr("gpuproof.cloud.lambda_cloud.POLL_S", 0.0)
    yield cloud
    server.shutdown()
    thread.join()
    server.server_close()


def lambda_(*words: str, **more: str) -> Result:
    return CliRunner().invoke(cli, ["cloud", "lambda", *words], input=more.get("answer"))


def deploy(path: Path, *words: str) -> Result:
    named = ["--type", "gpu_1x_a100", "--region", "us-east-1", "--ssh-key", "mine", "-o", str(path)]
    return lambda_("deploy", *named, *words)


@pytest.mark.promise("R0.1", "R0.3", "F0.11")
def test_a_deployment_waits_for_active_and_is_an_inventory(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    done = deploy(
        path, "--count", "2", "--name-prefix", "load", "--tags", "a=b,c=d", "--firewall-rules", "f1"
    )
    assert done.exit_code == 0, done.output
    assert cloud.launches[1] == {
        "region_name": "us-east-1",
        "instance_type_name": "gpu_1x_a100",
        "ssh_key_names": ["mine"],
        "name": "load-2",
        "tags": [{"key": "a", "value": "b"}, {"key": "c", "value": "d"}],
        "firewall_rulesets": [{"id": "f1"}],
    }
    written = json.loads(path.read_text())
    assert {key: written[key] for key in ("instance_type", "instance_count", "name_prefix")} == {
        "instance_type": "gpu_1x_a100",
        "instance_count": 2,
        "name_prefix": "load",
    }
    assert [entry["instance_ids"] for entry in written["instances"]] == [["i1"], ["i2"]]
    hosts = load_inventory(str(path)).hosts
    assert [(host.name, host.address, host.user) for host in hosts] == [
        ("load-1", "203.0.113.1", "ubuntu"),
        ("load-2", "203.0.113.2", "ubuntu"),
    ]
    assert (hosts[0].gpus, hosts[0].gpu_type, hosts[0].price_per_hour) == (1, "A100 (40 GB PCIe)", 1.29)
    assert "booting" in done.output
    assert KEY not in done.output


@pytest.mark.promise("R0.3")
def test_addresses_that_the_file_lacks_are_asked_for(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    assert deploy(path, "--no-wait").exit_code == 0
    assert "ip" not in json.loads(path.read_text())["instances"][0]
    for _ in range(3):
        lambda_("list")
    choice = HostChoice(launcher="ssh", file=str(path))
    (host,) = SshHosts.chosen(choice, python=None).hosts
    assert (host.address, host.user) == ("203.0.113.1", "ubuntu")


def test_what_was_launched_before_a_refusal_is_in_the_file(cloud: Cloud, tmp_path: Path) -> None:
    api = LambdaCloud(KEY, base_url=cloud_url())
    requests = [
        LaunchRequest(type_name="gpu_1x_a100", region=region, ssh_key="mine", name="x")
        for region in ("us-east-1", "full")
    ]
    launched: list[str] = []
    with pytest.raises(CloudError, match=r"Not enough capacity\..*insufficient-capacity.*Choose another"):
        launched.extend(launch_all(api, requests, sleep=lambda _: None))
    assert launched == ["i1"]


def cloud_url() -> str:
    import os

    return os.environ["LAMBDA_API_URL"]


def test_waiting_ends_with_the_time_or_the_instance(cloud: Cloud) -> None:
    api = LambdaCloud(KEY, base_url=cloud_url())
    request = LaunchRequest(type_name="gpu_1x_a100", region="us-east-1", ssh_key="mine", name="x")
    (new,) = api.launch(request)
    cloud.polls_until_active = 100
    clock = iter(range(100))
    seen: list[str] = []
    with pytest.raises(CloudError, match="not active within 3 s: booting"):
        wait_until_active(
            api, [new], timeout_s=3, on_status=lambda i: seen.append(i.status), sleep=lambda _: None,
            clock=lambda: float(next(clock)),
        )  # fmt: skip
    assert seen == ["booting"]
    cloud.instances[new]["status"] = "unhealthy"
    with pytest.raises(CloudError, match="the instance is unhealthy"):
        wait_until_active(api, [new], timeout_s=3, on_status=lambda _: None, sleep=lambda _: None)


@pytest.mark.promise("R0.1")
def test_terminating_asks_first(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    deploy(path)
    refused = lambda_("terminate", "--deployment-file", str(path), answer="n\n")
    assert refused.exit_code == 1
    assert list(cloud.instances) == ["i1"]
    assert "Terminate 1 of 1 instances" in refused.output
    assert lambda_("terminate", "i1", "--yes").exit_code == 0
    assert cloud.instances == {}
    with pytest.raises(UsageError, match="not among your instances"):
        CliRunner().invoke(cli, ["cloud", "lambda", "terminate", "i1", "--yes"], catch_exceptions=False)


def test_types_with_room(cloud: Cloud) -> None:
    assert "gpu_8x_h100" in lambda_("types").output
    assert lambda_("types", "--available").output.split()[0] == "gpu_1x_a100"
    assert json.loads(lambda_("types", "--available", "--json").output)[0]["price_per_hour"] == 1.29


def test_a_wrong_key_is_refused_and_never_shown(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMBDA_API_KEY", "wrong_secret")
    with pytest.raises(CloudError, match="API key was invalid") as refused:
        CliRunner().invoke(cli, ["cloud", "lambda", "list"], catch_exceptions=False)
    assert "wrong_secret" not in str(refused.value) + repr(LambdaCloud("wrong_secret"))


@pytest.mark.promise("R0.4")
def test_a_key_file_that_others_can_read_is_refused(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAMBDA_API_KEY")
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    path.chmod(0o640)
    words = ["cloud", "lambda", "list", "--api-key-file", str(path)]
    with pytest.raises(UsageError, match=r"is readable by others \(mode 0640\)"):
        CliRunner().invoke(cli, words, catch_exceptions=False)
    path.chmod(0o600)
    assert CliRunner().invoke(cli, words).output == "No instances.\n"
    with pytest.raises(UsageError, match="no API key"):
        CliRunner().invoke(cli, [*words[:-1], str(tmp_path / "none")], catch_exceptions=False)


def test_an_api_that_is_not_there_is_told() -> None:
    with pytest.raises(GpuproofError, match="cannot be reached"):
        LambdaCloud(KEY, base_url="http://127.0.0.1:1").instances()


def test_nothing_is_launched_that_cannot_be_recorded(cloud: Cloud, tmp_path: Path) -> None:
    refused = deploy(tmp_path / "absent" / "cluster.json")
    assert refused.exit_code != 0
    assert cloud.launches == []


def test_an_instance_named_twice_is_terminated_once(cloud: Cloud, tmp_path: Path) -> None:
    deploy(tmp_path / "cluster.json")
    assert "Terminate 1 of 1" in lambda_("terminate", "i1", "i1", answer="y\n").output
