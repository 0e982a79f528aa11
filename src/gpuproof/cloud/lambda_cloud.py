"""Lambda's public cloud API: types, instances, launch, terminate. Standard library only.

Input: a key from LAMBDA_API_KEY, or from a file readable only by its owner; it is sent as a bearer token and
never appears in messages. Output: instances as values. Replies are `{"data": …}` or `{"error": {code,
message, suggestion}}`. Source: https://docs.lambda.ai/api/cloud (version 1.10); at most one request per
second and one launch every twelve seconds.
"""

from __future__ import annotations

import json
import os
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuproof.base.errors import EnvironmentUnfitError, GpuproofError, UsageError

BASE_URL = "https://cloud.lambda.ai/api/v1"
URL_VARIABLE = "LAMBDA_API_URL"
KEY_VARIABLE = "LAMBDA_API_KEY"
KEY_FILE = "~/.config/gpuproof/lambda-api-key"
TIMEOUT_S = 30.0
LAUNCH_SPACING_S = 12.0
POLL_S = 10.0
ACTIVE = "active"
HOPELESS = frozenset({"unhealthy", "terminated", "terminating", "preempted"})
OTHERS = stat.S_IRWXG | stat.S_IRWXO


class CloudError(GpuproofError):
    """The provider rejected the request, or could not be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance."""

    id: str
    name: str | None
    status: str
    ip: str | None
    hostname: str | None
    region: str | None
    type_name: str | None
    gpu_type: str | None
    gpus: int | None
    price_per_hour: float | None
    """Hourly price in US dollars."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceType:
    """An instance type on offer."""

    name: str
    description: str
    gpus: int | None
    price_per_hour: float
    regions: tuple[str, ...]
    """Regions where capacity is available now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What to launch; each request launches one instance."""

    type_name: str
    region: str
    ssh_key: str
    name: str
    file_systems: tuple[str, ...] = ()
    hostname: str | None = None
    image: str | None = None
    user_data: str | None = None
    tags: tuple[tuple[str, str], ...] = ()
    firewall_rules: tuple[str, ...] = ()

    def body(self) -> dict[str, Any]:
        """Return the request in the API's format; unset fields are omitted."""
        body = {
            "region_name": self.region,
            "instance_type_name": self.type_name,
            "ssh_key_names": [self.ssh_key],
            "file_system_names": list(self.file_systems),
            "name": self.name,
            "hostname": self.hostname,
            "image": {"id": self.image} if self.image else None,
            "user_data": self.user_data,
            "tags": [{"key": key, "value": value} for key, value in self.tags],
            "firewall_rulesets": [{"id": rule} for rule in self.firewall_rules],
        }
        return {key: value for key, value in body.items() if value not in (None, [])}


class LambdaCloud:
    """The API, accessed with one key."""

    def __init__(self, key: str, *, base_url: str = BASE_URL) -> None:
        self._key = key
        self._base_url = base_url.rstrip("/")

    def __repr__(self) -> str:
        """Return a representation without the key."""
        return f"LambdaCloud({self._base_url})"

    def instances(self) -> list[Instance]:
        """List the existing instances."""
        return [_instance(fields) for fields in self._ask("GET", "/instances")]

    def instance(self, instance_id: str) -> Instance:
        """Return one instance."""
        return _instance(self._ask("GET", f"/instances/{instance_id}"))

    def types(self) -> list[InstanceType]:
        """List the instance types on offer."""
        return [_type(fields) for fields in self._ask("GET", "/instance-types").values()]

    def launch(self, request: LaunchRequest) -> list[str]:
        """Launch an instance; return its id."""
        answer = self._ask("POST", "/instance-operations/launch", request.body())
        return [str(instance_id) for instance_id in answer["instance_ids"]]

    def terminate(self, instance_ids: Sequence[str]) -> list[Instance]:
        """Terminate instances; return the ones being terminated."""
        body = {"instance_ids": list(instance_ids)}
        answer = self._ask("POST", "/instance-operations/terminate", body)
        return [_instance(fields) for fields in answer["terminated_instances"]]

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the data of an API response.

        Raises:
            CloudError: the API rejects the request, cannot be reached, or returns an unreadable response.
        """
        request = urllib.request.Request(  # noqa: S310  # the address is https, or the user's own
            f"{self._base_url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._key}",
                "Content-Type": "application/json",
                "User-Agent": "gpuproof",
            },
        )
        place = f"{method} {self._base_url}{path}"
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310  # as above
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise _refusal(error, place) from None
        except (urllib.error.URLError, TimeoutError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise CloudError(f"cannot be reached: {reason}", place=place) from None
        except (ValueError, KeyError, TypeError) as error:
            raise CloudError("does not respond as the API should", place=place) from error


def _refusal(error: urllib.error.HTTPError, place: str) -> CloudError:
    try:
        error_fields = json.load(error)["error"]
        cause, next_step = (
            f"{error_fields['message']} ({error_fields['code']})",
            error_fields.get("suggestion"),
        )
    except (ValueError, KeyError, TypeError):
        cause, next_step = f"HTTP {error.code}", None
    return CloudError(cause, place=place, next_step=next_step)


def _instance(fields: Mapping[str, Any]) -> Instance:
    kind = fields.get("instance_type") or {}
    cents = kind.get("price_cents_per_hour")
    return Instance(
        id=str(fields["id"]),
        name=fields.get("name"),
        status=str(fields["status"]),
        ip=fields.get("ip"),
        hostname=fields.get("hostname"),
        region=(fields.get("region") or {}).get("name"),
        type_name=kind.get("name"),
        gpu_type=kind.get("gpu_description") or kind.get("description"),
        gpus=(kind.get("specs") or {}).get("gpus"),
        price_per_hour=None if cents is None else cents / 100,
    )


def _type(fields: Mapping[str, Any]) -> InstanceType:
    kind = fields["instance_type"]
    return InstanceType(
        name=kind["name"],
        description=kind["description"],
        gpus=(kind.get("specs") or {}).get("gpus"),
        price_per_hour=kind["price_cents_per_hour"] / 100,
        regions=tuple(region["name"] for region in fields["regions_with_capacity_available"]),
    )


def wait_until_active(
    cloud: LambdaCloud,
    instance_ids: Sequence[str],
    *,
    timeout_s: float,
    on_status: Callable[[Instance], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[Instance]:
    """Wait until all of these instances are active; return them in the same order.

    Raises:
        CloudError: one of them terminates instead of becoming active, or time runs out.
    """
    deadline_s, instances = clock() + timeout_s, {}
    last: dict[str, str] = {}
    while True:
        for instance_id in instance_ids:
            if instance_id not in instances:
                instance = cloud.instance(instance_id)
                if last.get(instance_id) != instance.status:
                    last[instance_id] = instance.status
                    on_status(instance)
                if instance.status in HOPELESS:
                    raise CloudError(f"the instance is {instance.status}", place=instance_id)
                if instance.status == ACTIVE and instance.ip:
                    instances[instance_id] = instance
        if len(instances) == len(instance_ids):
            return [instances[instance_id] for instance_id in instance_ids]
        if clock() >= deadline_s:
            missing = next(i for i in instance_ids if i not in instances)
            raise CloudError(
                f"not active within {timeout_s:g} s: {last[missing]}",
                place=missing,
                next_step="It keeps booting and costs money: `gpuproof cloud lambda list`, or terminate it",
            )
        sleep(POLL_S)


def launch_all(
    cloud: LambdaCloud, requests: Sequence[LaunchRequest], *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Launch instances one by one, as fast as the API allows; yield each id as soon as it is known."""
    for number, request in enumerate(requests):
        if number:
            sleep(LAUNCH_SPACING_S)
        yield from cloud.launch(request)


def cloud_from(environment: Mapping[str, str] = os.environ, *, key_file: str | None = None) -> LambdaCloud:
    """Return the API with the user's key, read from the variable LAMBDA_API_KEY or from a file.

    Raises:
        UsageError: there is no key, or other users can read the file.
    """
    base_url = environment.get(URL_VARIABLE, BASE_URL)
    if key_file is None and environment.get(KEY_VARIABLE):
        return LambdaCloud(environment[KEY_VARIABLE].strip(), base_url=base_url)
    path = Path(key_file or KEY_FILE).expanduser()
    try:
        mode, key = path.stat().st_mode, path.read_text(encoding="ascii").strip()
    except FileNotFoundError as error:
        raise UsageError(
            f"no API key: {KEY_VARIABLE} is not set and {path} does not exist",
            place="Lambda's cloud",
            next_step=f"Set {KEY_VARIABLE}, or write the key (lambdactl: in ~/.lambda-deploy/config.json) "
            "to that file and chmod 600 it",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise UsageError(f"the API key cannot be read: {reason}", place=str(path)) from error
    if mode & OTHERS:
        raise UsageError(
            f"the API key is readable by others (mode {stat.S_IMODE(mode):04o})",
            place=str(path),
            next_step=f"chmod 600 {path}, and get a new key if the machine has other users",
        )
    if not key:
        raise UsageError("the API key file is empty", place=str(path))
    return LambdaCloud(key, base_url=base_url)


def fetch_addresses(instance_ids: Sequence[str], *, place: str) -> dict[str, str]:
    """Look up the addresses of instances by id.

    Raises:
        UsageError: no API key is set.
        EnvironmentUnfitError: an instance does not exist, or has no address.
    """
    instances = {instance.id: instance for instance in cloud_from().instances()}
    for instance_id in instance_ids:
        instance = instances.get(instance_id)
        if instance is None or not instance.ip:
            cause = "is not one of yours" if instance is None else f"is {instance.status}, without an IP"
            raise EnvironmentUnfitError(
                f"instance {instance_id} {cause}", place=place, next_step="gpuproof cloud lambda list"
            )
    return {instance_id: str(instances[instance_id].ip) for instance_id in instance_ids}
