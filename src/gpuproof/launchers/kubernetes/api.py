"""A cluster's API through the official client: replies as plain values, failures as our errors.

In: manifests, names. Out: objects as plain mappings, and the output of a command in a container. Every
rejection is reported in the API's own words, along with what to do about it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.stream import stream
from urllib3.exceptions import HTTPError

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.base.outside import parse_json
from gpuproof.launchers.kubernetes.manifests import Kind
from gpuproof.launchers.kubernetes.options import KubernetesOptions
from gpuproof.launchers.kubernetes.pods import Manifest
from gpuproof.launchers.queue import SchedulerSilentError

TIMEOUT_S = 30.0
"""Time limit for one call."""
EXEC_TIMEOUT_S = 600.0
"""Time limit for one command in a container: fetching a trace over a slow link takes time."""
MEMORY_BYTES = 16 * 2**20
ERROR_CHANNEL = 3
NOT_FOUND, CONFLICT = 404, 409
_FILE = "the file passed to --on kubernetes:FILE"
_REMEDIES: Mapping[int, str] = {
    401: "Log in to the cluster again; `kubectl auth whoami` shows who you are",
    403: "`kubectl auth can-i --list` shows what you may do; ask the administrator for a role "
    f"that may create and delete this, and use pods/exec; or set another namespace in {_FILE}",
    404: "`kubectl get namespaces` and `kubectl api-resources` list what exists; set namespace or "
    f"engine in {_FILE}",
    409: "Something with that name already exists, and was not changed: `kubectl get "
    "jobs,configmaps,services` shows it; delete it if it is from an earlier gpuproof, then "
    "continue with --resume",
    413: "Set claim in the file passed to --on kubernetes:FILE, so that files need not go through the API",
    422: f"Check the request with --dry-run, and change {_FILE}",
}
QUOTA = f"`kubectl describe resourcequota` shows the limits; wait, or request less in {_FILE}"


class KubernetesRefusalError(UsageError):
    """The API rejects a request."""

    def __init__(self, status: int, cause: str, *, place: str) -> None:
        next_step = QUOTA if "exceeded quota" in cause else _REMEDIES.get(status)
        super().__init__(cause, place=place, next_step=next_step)
        self.status = status


class KubernetesSilentError(SchedulerSilentError):
    """There is no response, or it is not from a cluster."""


class Cluster:
    """One namespace of a cluster."""

    def __init__(self, options: KubernetesOptions, environment: Mapping[str, str] = os.environ) -> None:
        """Find the cluster, and check that it responds.

        Raises:
            EnvironmentUnfitError: the cluster cannot be reached, or does not respond.
            KubernetesRefusalError: we are not allowed to list pods.
        """
        configuration, namespace = _configured(options.context, environment.get("KUBECONFIG"))
        configuration.retries = False
        self._configuration = configuration
        self._client = client.ApiClient(configuration)
        self._core, self._custom = client.CoreV1Api(self._client), client.CustomObjectsApi(self._client)
        self.namespace = options.namespace or namespace
        self.server = str(configuration.host)
        self.pods("gpuproof/run=nobody")

    def close(self) -> None:
        """Close the connections."""
        self._client.rest_client.pool_manager.clear()

    def create(self, manifest: Manifest, kind: Kind) -> str:
        """Create an object; return its uid.

        Raises:
            KubernetesRefusalError: the object is rejected.
            EnvironmentUnfitError: the cluster does not respond.
        """
        what = f"{kind.kind} {manifest['metadata']['name']}"
        if kind.group:
            call = self._custom.create_namespaced_custom_object
            created = self._ask(what, call, kind.group, kind.version, self.namespace, kind.plural, manifest)
        else:
            created = self._ask(what, self._core_call("create", kind.kind), self.namespace, manifest)
        return str(created["metadata"]["uid"])

    def set_owner(self, name: str, kind: Kind, *, owner: Manifest) -> None:
        """Set an object's owner, so that Kubernetes removes it with the owner, even if we have exited."""
        body = {"metadata": {"ownerReferences": [owner]}}
        self._ask(f"{kind.kind} {name}", self._core_call("patch", kind.kind), name, self.namespace, body)

    def delete(self, name: str, uid: str, kind: Kind) -> None:
        """Remove an object and its pods; it is not an error if it is missing or was replaced."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        place = f"{kind.kind} {name}"
        try:
            if not kind.group:
                self._ask(place, self._core_call("delete", kind.kind), name, self.namespace, body=options)
                return
            call = self._custom.delete_namespaced_custom_object
            self._ask(place, call, kind.group, kind.version, self.namespace, kind.plural, name, body=options)
        except KubernetesRefusalError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    def pods(self, selector: str) -> list[Manifest]:
        """Return the pods with these labels, in one call."""
        pods = self._ask("pods", self._core.list_namespaced_pod, self.namespace, label_selector=selector)
        return list(pods["items"])

    def nodes(self) -> list[Manifest]:
        """Return the nodes of the cluster."""
        return list(self._ask("nodes", self._core.list_node)["items"])

    def objects(self, kind: Kind, selector: str) -> list[Manifest]:
        """Return the objects of one kind with these labels."""
        if not kind.group:
            call = self._core_call("list", kind.kind)
            return list(self._ask(kind.plural, call, self.namespace, label_selector=selector)["items"])
        call = self._custom.list_namespaced_custom_object
        scope = (kind.group, kind.version, self.namespace, kind.plural)
        return list(self._ask(kind.plural, call, *scope, label_selector=selector)["items"])

    def warnings(self, name: str) -> list[str]:
        """Return the warnings about an object, oldest first; empty if we are not allowed to list them."""
        try:
            events = self._ask(
                "events",
                self._core.list_namespaced_event,
                self.namespace,
                field_selector=f"involvedObject.name={name},type=Warning",
            )
        except KubernetesRefusalError:
            return []
        return [f"{event.get('reason', '')}: {event.get('message', '')}" for event in events["items"]]

    def run_in(self, pod: str, container: str, command: Sequence[str]) -> tuple[IO[bytes], str | None]:
        """Run a command in a container; return its output and, if it failed, why.

        Raises:
            KubernetesRefusalError: the API does not allow it.
            EnvironmentUnfitError: the cluster does not respond.
        """
        # `stream` changes its client while it runs
        core = client.CoreV1Api(client.ApiClient(self._configuration))
        request = {"command": list(command), "container": container, "stdin": False, "tty": False}
        try:
            channel = stream(
                core.connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                **request,
                stdout=True,
                stderr=True,
                binary=True,
                _preload_content=False,
            )
        except ApiException as error:
            raise _refused(error, f"pods/exec of {pod}") from None
        try:
            return _heard(channel)
        finally:
            channel.sock.shutdown()  # `close` leaves a socket open if the API has closed it
            core.api_client.rest_client.pool_manager.clear()

    def _core_call(self, verb: str, kind: str) -> Callable[..., Any]:
        name = {"ConfigMap": "config_map", "Service": "service"}[kind]
        call: Callable[..., Any] = getattr(self._core, f"{verb}_namespaced_{name}")
        return call

    def _ask(self, place: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the API's response to a call, as plain values.

        Raises:
            KubernetesRefusalError: the API rejects it.
            EnvironmentUnfitError: the cluster does not respond.
        """
        try:
            # Objects are used as received: the client's own models reject objects with missing or extra
            # fields.
            response = call(*arguments, **options, _request_timeout=TIMEOUT_S, _preload_content=False)
        except ApiException as error:
            raise _refused(error, f"{place} in namespace {self.namespace}") from None
        except HTTPError as error:
            host = self._configuration.host
            raise KubernetesSilentError(
                f"the cluster does not respond: {error}",
                place=host,
                next_step="`kubectl cluster-info` shows whether it is up and reachable from here",
            ) from None
        return parse_json(response.data)


def _configured(context: str | None, file: str | None) -> tuple[Any, str]:
    """Return how to reach the cluster (kubeconfig, or from inside a pod) and the namespace to use.

    Raises:
        EnvironmentUnfitError: neither of them defines a cluster.
    """
    configuration = client.Configuration()
    try:
        config.load_kube_config(file, context=context, client_configuration=configuration)
        contexts, active = config.list_kube_config_contexts(file)
        named = next((one for one in contexts if one["name"] == context), active)
        return configuration, named["context"].get("namespace") or "default"
    except ConfigException as error:
        if context is not None:
            raise _no_access(error) from None
        cause = error
    try:
        config.load_incluster_config(client_configuration=configuration)
    except ConfigException:
        raise _no_access(cause) from None
    with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="utf-8") as namespace:
        return configuration, namespace.read().strip()


def _no_access(error: Exception) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        f"no access to a cluster: {error}",
        place="--on kubernetes",
        next_step="Set KUBECONFIG, or get a kubeconfig of your cluster; `kubectl config "
        "get-contexts` lists your contexts",
    )


def _refused(error: ApiException, place: str) -> Exception:
    """Convert a rejection by the API to our own error, keeping the API's wording."""
    if error.status in (0, None) or error.status >= 500:
        return KubernetesSilentError(
            f"the cluster could not fulfil the request: {error.reason}",
            place=place,
            next_step="`kubectl get --raw /readyz?verbose` shows whether its API is healthy",
        )
    try:
        cause = parse_json(error.body or "")["message"]
    except (TypeError, ValueError, KeyError):
        cause = str(error.reason)
    return KubernetesRefusalError(error.status, str(cause), place=place)


def _heard(channel: Any) -> tuple[IO[bytes], str | None]:
    """Read a command's output to the end."""
    output: IO[bytes] = SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115  # the caller reads it
    errors = b""
    deadline_s = time.monotonic() + EXEC_TIMEOUT_S
    while channel.is_open() and time.monotonic() < deadline_s:
        channel.update(timeout=1)
        output.write(channel.read_stdout(timeout=0))
        errors += channel.read_stderr(timeout=0)
    ended = channel.read_channel(ERROR_CHANNEL)
    output.seek(0)
    status = parse_json(ended) if ended else {"message": "the connection was cut off"}
    if status.get("status") == "Success":
        return output, None
    message = errors.decode(errors="replace").strip()
    return output, f"{status.get('message', 'failed')} {message}".strip()
