"""A cluster for tests: Kubernetes' API over real HTTP, whose pods are processes on this machine.

It knows what the launcher uses: ConfigMaps, Services, jobs, pods, events, nodes, and exec over a WebSocket.
A pod's volumes are folders; its containers' words run with those folders in the place of its mounts. What a
test wants to go wrong it says in `refusals`, `events` and `pod_fault`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

Object = dict[str, Any]
STARTED = ("jobs", "jobsets", "pytorchjobs", "trainjobs")
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass(kw_only=True)
class Pod:
    """One pod: its object, and the processes that stand for its containers."""

    body: Object
    folder: Path
    replaced: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    is_told: bool = False

    def words(self, words: list[str]) -> list[str]:
        """Return the words as they are run here."""
        return [sys.executable if word == "python3" else self._here(word) for word in words]

    def _here(self, word: str) -> str:
        for there, here in self.replaced.items():
            word = word.replace(there, here)
        return word

    def status(self) -> Object:
        """Return what the kubelet would say."""
        containers = []
        for name, process in self.processes.items():
            code = process.poll()
            code = 128 - code if code is not None and code < 0 else code
            state: Object = (
                {"running": {}} if code is None else {"terminated": {"exitCode": code, "reason": "Error"}}
            )
            containers.append({"name": name, "state": state})
        return {"phase": "Running", "containerStatuses": containers, **self.body.get("fault", {})}

    def end(self) -> None:
        """End it as the kubelet does: SIGTERM, then SIGKILL."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            process.kill()
            process.wait()


class World:
    """What is in the cluster, and what goes wrong there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[tuple[str, str], Object] = {}
        self.pods: dict[str, Pod] = {}
        self.nodes: list[Object] = []
        self.events: list[Object] = []
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        """By method and kind, what is answered instead."""
        self.pod_fault: Object | None = None
        """The status of pods that never run."""
        self.makes_pods = True
        self.calls: list[tuple[str, str]] = []
        self.lock = threading.RLock()
        self.seen: list[Object] = []
        """All that was ever made."""

    def left(self) -> list[str]:
        """Return what is in the cluster now."""
        return sorted(
            [f"{kind}/{name}" for kind, name in self.objects] + [f"pods/{name}" for name in self.pods]
        )

    def evict(self, name: str, message: str) -> None:
        """Take a pod away as a kubelet short of something does."""
        pod = self.pods[name]
        for process in pod.processes.values():
            process.kill()
            process.wait()
        pod.body["fault"] = {"phase": "Failed", "reason": "Evicted", "message": message}

    def make(self, kind: str, body: Object) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        with self.lock:
            if (kind, name) in self.objects:
                return 409, failed(409, f'{kind} "{name}" already exists')
            body["metadata"] |= {"uid": str(uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
            self.objects[kind, name] = body
            self.seen.append(body)
            if kind in STARTED and self.makes_pods:
                self._start_pods(body)
        return 201, body

    def _start_pods(self, job: Object) -> None:
        name, spec = job["metadata"]["name"], job["spec"]
        address, port = f"{name}-0.{name}", str(free_port())
        for index in range(spec["completions"]):
            template = spec["template"]
            labels = {
                **template["metadata"]["labels"],
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            metadata = {"name": f"{name}-{index}", "labels": labels, "job": name}
            body = {"metadata": metadata, "spec": {**template["spec"], "nodeName": f"node-{index}"}}
            folder = self.folder / f"{name}-{index}"
            pod = Pod(body=body, folder=folder, replaced={address: "127.0.0.1", "29500": port, "$$": "$"})
            self.pods[f"{name}-{index}"] = pod
            if self.pod_fault is not None:
                body["fault"] = self.pod_fault
                body["spec"]["nodeName"] = ""
                continue
            self._mount(pod)
            for container in template["spec"]["containers"]:
                self._start(pod, container, index)

    def _mount(self, pod: Pod) -> None:
        spec = pod.body["spec"]
        for volume in spec["volumes"]:
            if "configMap" in volume:
                held = self.objects["configmaps", volume["configMap"]["name"]]
                for item in volume["configMap"]["items"]:
                    path = pod.folder / volume["name"] / item["path"]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    binary = held["binaryData"].get(item["key"])
                    text = held["data"].get(item["key"], "").encode()
                    path.write_bytes(text if binary is None else base64.b64decode(binary))
            else:
                (pod.folder / volume["name"]).mkdir(parents=True)
        for mount in spec["containers"][0]["volumeMounts"]:
            if mount["mountPath"].startswith("/gpuproof/"):
                pod.replaced[mount["mountPath"]] = str(pod.folder / mount["name"])

    def _start(self, pod: Pod, container: Object, index: int) -> None:
        variables = {told["name"]: told["value"] for told in container.get("env", [])}
        environment = {**os.environ, **variables, "JOB_COMPLETION_INDEX": str(index)}
        with (pod.folder / f"{container['name']}.log").open("wb") as log:
            process = subprocess.Popen(
                pod.words(container["command"]),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        pod.processes[container["name"]] = process

    def delete(self, kind: str, name: str, told: Object) -> tuple[int, Object]:
        with self.lock:
            body = self.objects.get((kind, name))
            if body is None:
                return 404, failed(404, f'{kind} "{name}" not found')
            uid = told.get("preconditions", {}).get("uid")
            if uid not in (None, body["metadata"]["uid"]):
                return 409, failed(409, "the UID in the precondition does not match")
            del self.objects[kind, name]
            for key, other in list(self.objects.items()):
                owners = other["metadata"].get("ownerReferences", [])
                if any(owner["uid"] == body["metadata"]["uid"] for owner in owners):
                    del self.objects[key]
            gone = [
                pod for pod in self.pods.values() if kind in STARTED and pod.body["metadata"]["job"] == name
            ]
        for pod in gone:
            threading.Thread(target=self._remove_pod, args=(pod,)).start()
        return 200, {"status": "Success"}

    def _remove_pod(self, pod: Pod) -> None:
        pod.end()
        with self.lock:
            self.pods.pop(pod.body["metadata"]["name"], None)

    def listed(self, kind: str, query: Mapping[str, list[str]]) -> list[Object]:
        with self.lock:
            if kind == "pods":
                bodies = [{**pod.body, "status": pod.status()} for pod in self.pods.values()]
            elif kind in ("events", "nodes"):
                bodies = self.events if kind == "events" else self.nodes
            else:
                bodies = [body for (of, _), body in self.objects.items() if of == kind]
        for asked in filter(None, query.get("labelSelector", [""])[0].split(",")):
            key, equals, value = asked.partition("=")
            bodies = [
                body
                for body in bodies
                if key in body["metadata"].get("labels", {})
                and (not equals or body["metadata"]["labels"][key] == value)
            ]
        return bodies

    def close(self) -> None:
        for pod in list(self.pods.values()):
            for process in pod.processes.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def failed(status: int, message: str) -> Object:
    """Return what the API says of a refusal."""
    return {"kind": "Status", "status": "Failure", "code": status, "message": message}


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    world: World

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def _asked(self) -> tuple[str, str, str, dict[str, list[str]]]:
        """Return the kind, the name, what of it, and the query of a request."""
        url = urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        parts = parts[2:] if parts[0] == "namespaces" else parts
        kind, name, sub = (*parts, "", "")[:3]
        self.world.calls.append((self.command, kind))
        return kind, name, sub, parse_qs(url.query)

    def _body(self) -> Object:
        length = int(self.headers.get("Content-Length") or 0)
        read: Object = json.loads(self.rfile.read(length) or b"{}")
        return read

    def _say(self, status: int, body: Object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _is_refused(self, kind: str) -> bool:
        refusal = self.world.refusals.get((self.command, kind))
        if refusal is not None:
            self._body()
            self._say(refusal[0], failed(*refusal))
        return refusal is not None

    def do_GET(self) -> None:
        kind, name, sub, query = self._asked()
        if self._is_refused(sub or kind):
            return
        if sub == "exec":
            self._exec(self.world.pods[name], query)
        else:
            self._say(200, {"items": self.world.listed(kind, query), "metadata": {}})

    def do_POST(self) -> None:
        kind, *_ = self._asked()
        if not self._is_refused(kind):
            self._say(*self.world.make(kind, self._body()))

    def do_PATCH(self) -> None:
        kind, name, *_ = self._asked()
        if not self._is_refused(kind):
            body = self.world.objects[kind, name]
            body["metadata"].update(self._body()["metadata"])
            self._say(200, body)

    def do_DELETE(self) -> None:
        kind, name, *_ = self._asked()
        if not self._is_refused(kind):
            self._say(*self.world.delete(kind, name, self._body()))

    def _exec(self, pod: Pod, query: Mapping[str, list[str]]) -> None:
        """Run a command in a container, over a WebSocket as the API does it (v4.channel.k8s.io)."""
        key = self.headers["Sec-WebSocket-Key"] + GUID
        accepted = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accepted)
        self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        self.end_headers()
        index = pod.body["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        environment = {**os.environ, "JOB_COMPLETION_INDEX": index}
        done = subprocess.run(pod.words(query["command"]), env=environment, capture_output=True)
        for channel, content in ((1, done.stdout), (2, done.stderr)):
            for begin in range(0, len(content), 50_000):
                self._frame(2, bytes([channel]) + content[begin : begin + 50_000])
        code = done.returncode
        causes = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
        bad = {"status": "Failure", "message": f"command terminated with exit code {code}", "details": causes}
        self._frame(2, b"\x03" + json.dumps({"status": "Success"} if code == 0 else bad).encode())
        self._frame(8, struct.pack(">H", 1000))
        self.close_connection = True

    def _frame(self, opcode: int, content: bytes) -> None:
        size = len(content)
        length = bytes([size]) if size < 126 else bytes([126]) + struct.pack(">H", size)
        self.wfile.write(bytes([0x80 | opcode]) + length + content)
        self.wfile.flush()


@contextmanager
def kubernetes_world(folder: Path) -> Iterator[tuple[World, dict[str, str]]]:
    """Give a cluster, and the environment by which it is found."""
    world = World(folder / "pods")
    handler = type("Bound", (Handler,), {"world": world})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield world, {"KUBECONFIG": str(kubeconfig(folder, f"http://127.0.0.1:{server.server_port}"))}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        world.close()


def kubeconfig(folder: Path, address: str) -> Path:
    """Write how a cluster is reached."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {"token": "none"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me", "namespace": "lab"}}],
    }
    path = folder / "kubeconfig"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))
    return path
