"""A cluster for tests: Kubernetes' API over real HTTP, whose pods are processes on this machine.

It allows what the roles in `containers` allow, and knows what the launcher uses: ConfigMaps, Services, jobs,
pods, events, nodes, and exec over a WebSocket.
A pod's volumes are folders; its containers' words run with those folders in the place of its mounts. Pods are
made, restarted and removed as controllers do (`kubernetes_controllers`). What a test wants to go wrong it
says in `refusals`, `events` and `pod_fault`; with `agent` a script runs in the place of torch's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import struct
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import psutil
from ruamel.yaml import YAML

from kubernetes_controllers import Object, address_of, ends_the_others, maker_of, pods_of
from kubernetes_pod import Pod
from ports import free_ports

STARTED = ("jobs", "jobsets", "pytorchjobs", "trainjobs")
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
ROLES = Path(__file__).resolve().parents[1] / "containers"
GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def allowed() -> set[tuple[str, str]]:
    """Return what the roles allow: resource and verb; what starts pods counts as a job for every engine."""
    documents = (
        document
        for path in sorted(ROLES.glob("kubernetes-rbac*.yaml"))
        for document in YAML(typ="safe").load_all(path)
    )
    return {
        (resource, verb)
        for document in documents
        for rule in document.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


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
        self.quota: str | None = None
        """Why no pods are made, as who makes them says in an event."""
        self.agent: Path | None = None
        """A script that runs in the place of `torch.distributed.run`."""
        self.calls: list[tuple[str, str]] = []
        self.allowed, self.used = allowed(), set[tuple[str, str]]()
        self.lock = threading.RLock()
        self.seen: list[Object] = []
        """All that was ever made."""

    def left(self) -> list[str]:
        """Return what is in the cluster now."""
        return sorted(
            [f"{kind}/{name}" for kind, name in self.objects] + [f"pods/{name}" for name in self.pods]
        )

    def evict(self, number: int, message: str) -> None:
        """Take a pod away as a kubelet short of something does."""
        pod = list(self.pods.values())[number]
        for process in pod.processes.values():
            others = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            process.wait()
            for other in others:  # a container's processes end with its first
                other.kill()
        pod.body["fault"] = {"phase": "Failed", "reason": "Evicted", "message": message}

    def make(self, kind: str, body: Object) -> tuple[int, Object]:
        name = body["metadata"]["name"]
        with self.lock:
            if (kind, name) in self.objects:
                return 409, failed(409, f'{kind} "{name}" already exists')
            body["metadata"] |= {"uid": str(uuid4()), "creationTimestamp": "2026-01-01T00:00:00Z"}
            self.objects[kind, name] = body
            self.seen.append(body)
            if kind in STARTED and self.quota is not None:
                self._warn(body, "FailedCreate", self.quota)
            elif kind in STARTED and self.makes_pods:
                self._start_pods(body)
        return 201, body

    def _start_pods(self, job: Object) -> None:
        services = {name for kind, name in self.objects if kind == "services"}
        address, port = address_of(job, services), str(free_ports())
        replaced = {**({address: "127.0.0.1"} if address else {}), "29500": port, "$$": "$"}
        for number, body in enumerate(pods_of(job)):
            name = body["metadata"]["name"]
            body["metadata"]["job"] = job["metadata"]["name"]
            body["spec"]["nodeName"] = f"node-{number}"
            pod = Pod(body=body, folder=self.folder / name, replaced=dict(replaced), agent=self.agent)
            self.pods[name] = pod
            if self.pod_fault is not None:
                body["fault"] = self.pod_fault
                body["spec"]["nodeName"] = ""
                continue
            self._mount(pod)
            for container in body["spec"]["containers"]:
                pod.start(container)

    def reconcile(self) -> None:
        """Do what the kubelet and the controllers do about containers and pods that have failed."""
        for pod in self.pods.values():
            pod.restart()
        started = [body for (kind, _), body in self.objects.items() if kind in STARTED]
        for body in filter(ends_the_others, started):
            own = self._pods_of(body)
            phases = [pod.status()["phase"] for pod in own]
            if "Failed" in phases:
                self._take_away(pod for pod, phase in zip(own, phases, strict=True) if phase == "Running")

    def _warn(self, body: Object, reason: str, said: str) -> None:
        of = {"name": maker_of(body)}
        self.events.append({"metadata": {}, "reason": reason, "message": said, "involvedObject": of})

    def expire(self) -> None:
        """Take all pods away, as when activeDeadlineSeconds is over."""
        said = "Job was active longer than specified deadline"
        with self.lock:
            self._warn(self.seen[-1], "DeadlineExceeded", said)
            self._take_away(self.pods.values())

    def _pods_of(self, job: Object) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.body["metadata"]["job"] == job["metadata"]["name"]]

    def _take_away(self, pods: Iterable[Pod]) -> None:
        """Delete pods that run: they are told to end, and gone when they have."""
        for pod in pods:
            if "deletionTimestamp" not in pod.body["metadata"]:
                pod.body["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
                threading.Thread(target=self._remove_pod, args=(pod,)).start()

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
            if kind in STARTED:
                gone = self._pods_of(body)
                dead = [pod for pod in gone if pod.status()["phase"] != "Running"]
                self._take_away(pod for pod in gone if pod not in dead)
                for pod in dead:
                    del self.pods[pod.body["metadata"]["name"]]
        return 200, {"status": "Success"}

    def _remove_pod(self, pod: Pod) -> None:
        pod.end()
        with self.lock:
            self.pods.pop(pod.body["metadata"]["name"], None)

    def listed(self, kind: str, query: Mapping[str, list[str]]) -> list[Object]:
        with self.lock:
            if kind == "pods":
                self.reconcile()
                bodies = [{**pod.body, "status": pod.status()} for pod in self.pods.values()]
            elif kind in ("events", "nodes"):
                bodies = self.events if kind == "events" else self.nodes
            else:
                bodies = [body for (of, _), body in self.objects.items() if of == kind]
        if kind == "events":
            about = query["fieldSelector"][0].partition("involvedObject.name=")[2].partition(",")[0]
            bodies = [body for body in bodies if body["involvedObject"]["name"] == about]
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
        verb = VERBS.get(self.command) or ("get" if name else "list")
        resource = "jobs" if kind in STARTED else f"{kind}/{sub}".strip("/")
        self.world.used.add((resource, verb))
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
        if excess := self.world.used - self.world.allowed:
            refusal = 403, f"no role allows {excess}"
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
        environment = pod.environment(query["container"][0])
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
