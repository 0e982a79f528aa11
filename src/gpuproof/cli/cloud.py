"""`gpuproof cloud lambda`: rent Lambda cloud hosts and list them in a `--deployment-file`.

Only instances that you specify are launched or terminated; terminating asks for confirmation first. The file
is in lambdactl's format, and can be used directly as an inventory.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuproof.base.errors import UsageError
from gpuproof.base.files import read_plain, try_place
from gpuproof.cli.options import json_option, print_json, say
from gpuproof.launchers.numbers import FiniteRange
from gpuproof.store.run import write_whole

if TYPE_CHECKING:
    from gpuproof.cloud.lambda_cloud import Instance, LambdaCloud, LaunchRequest


key_option = click.option(
    "--api-key-file",
    metavar="FILE",
    help="File (mode 0600) with the key; otherwise LAMBDA_API_KEY, or ~/.config/gpuproof/lambda-api-key.",
)


@click.group()
def cloud() -> None:
    """Rent hosts to measure on: list, deploy and terminate them.

    \b
    gpuproof cloud lambda types --available
    gpuproof cloud lambda deploy --type gpu_1x_a100 --count 2 --region us-east-1 --ssh-key NAME
    gpuproof run quick --deployment-file cluster.json --ssh-key ~/.ssh/key.pem
    gpuproof cloud lambda terminate --deployment-file cluster.json
    """  # noqa: D301  # click reads the backspace character


@cloud.group("lambda")
def lambda_() -> None:
    """Rent hosts in Lambda's public cloud."""


@lambda_.command("types")
@click.option("--available", is_flag=True, help="Show only types with free capacity.")
@key_option
@json_option
def types(*, available: bool, api_key_file: str | None, as_json: bool) -> None:
    """List the instance types, their hourly price, and where they are available."""
    kinds = [kind for kind in _api(api_key_file).types() if kind.regions or not available]
    if as_json:
        print_json(kinds)
        return
    for kind in kinds:
        rooms = ", ".join(kind.regions) or "no room"
        say(f"{kind.name:<28} {kind.price_per_hour:>8.2f} USD/h  {kind.description}  ({rooms})")


@lambda_.command("list")
@key_option
@json_option
def list_(*, api_key_file: str | None, as_json: bool) -> None:
    """List your instances."""
    instances = _api(api_key_file).instances()
    if as_json:
        print_json(instances)
    elif not instances:
        click.echo("No instances.")
    else:
        for instance in instances:
            say(_line(instance))


@lambda_.command()
@click.option("--type", "type_name", required=True, metavar="NAME", help="Instance type, e.g. gpu_1x_a100.")
@click.option(
    "--count",
    type=click.IntRange(1, 100),
    default=1,
    metavar="N",
    help="Number of instances (1), launched 12 s apart.",
)
@click.option(
    "--name-prefix", default="cluster", metavar="NAME", help="Instances are named NAME-1, NAME-2 … (cluster)."
)
@click.option("--region", required=True, metavar="NAME", help="Region, e.g. us-east-1.")
@click.option("--ssh-key", required=True, metavar="NAME", help="Name of your public key at Lambda.")
@click.option(
    "--file-systems", callback=lambda *call: _listed(call[2]), metavar="A,B", help="File systems to attach."
)
@click.option("--hostname", metavar="NAME", help="Host name of the instance; only with --count 1.")
@click.option("--image", metavar="ID", help="Image to boot.")
@click.option(
    "--user-data",
    type=click.Path(path_type=Path),
    callback=lambda *call: None if call[2] is None else read_text(call[2]),
    metavar="FILE",
    help="cloud-init file to pass on.",
)
@click.option("--tags", callback=lambda *call: _tags(call[2]), metavar="K=V,K=V", help="Tag the instances.")
@click.option(
    "--firewall-rules", callback=lambda *call: _listed(call[2]), metavar="ID,ID",
    help="Firewall rule sets to apply.",
)  # fmt: skip
@click.option("--wait/--no-wait", default=True, help="Wait until all instances are active.")
@click.option(
    "--timeout",
    type=FiniteRange(1),
    default=900.0,
    metavar="S",
    help="Give up waiting after this time (900).",
)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), default=Path("cluster.json"), show_default=True,
    metavar="FILE", help="File to write the hosts to.",
)  # fmt: skip
@key_option
def deploy(
    *,
    count: int,
    name_prefix: str,
    wait: bool,
    timeout: float,
    output: Path,
    api_key_file: str | None,
    **request: Any,
) -> None:
    """Launch instances and write them to a hosts file.

    The file is written after each launch, so every instance that costs money is always recorded.
    """
    from gpuproof.cloud.lambda_cloud import LaunchRequest, launch_all, wait_until_active

    if request["hostname"] is not None and count > 1:
        raise UsageError("one host name for several instances", place="--hostname")
    if output.exists():
        raise UsageError("the file exists", place=str(output), next_step="Specify another with --output")
    try_place("--output", output)  # before anything costs money
    numbers = range(1, count + 1)
    requests = [LaunchRequest(name=f"{name_prefix}-{number}", **request) for number in numbers]
    api = _api(api_key_file)
    deployed = Deployed(output, requests)
    for instance_id in launch_all(api, requests):
        deployed.add(instance_id)
        say(f"launched {instance_id}")
    if wait:
        active = wait_until_active(
            api, deployed.ids, timeout_s=timeout, on_status=lambda instance: say(_line(instance))
        )
        deployed.complete(active)
    click.echo(f"Hosts are in {output}. They cost money until you run: gpuproof cloud lambda "
               f"terminate --deployment-file {output}")  # fmt: skip


@lambda_.command()
@click.argument("instance_ids", nargs=-1, metavar="[ID]...")
@click.option("--deployment-file", metavar="FILE", help="Terminate the instances in this file.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@key_option
def terminate(
    instance_ids: tuple[str, ...], *, deployment_file: str | None, yes: bool, api_key_file: str | None
) -> None:
    """Terminate instances permanently: everything on their disks is lost."""
    named = list(dict.fromkeys([*instance_ids, *_ids_in(deployment_file)]))
    if not named:
        raise UsageError("no instance given", place="terminate", next_step="Specify ids or --deployment-file")
    api = _api(api_key_file)
    there = {instance.id: instance for instance in api.instances()}
    for instance_id in named:
        if instance_id not in there:
            raise UsageError("not among your instances", place=instance_id)
        say(_line(there[instance_id]))
    if not yes:
        click.confirm(f"Terminate {len(named)} of {len(there)} instances and everything on them?", abort=True)
    for instance in api.terminate(named):
        say(_line(instance))


def _api(key_file: str | None) -> LambdaCloud:
    from gpuproof.cloud.lambda_cloud import cloud_from

    return cloud_from(key_file=key_file)


def _line(instance: Instance) -> str:
    price = "" if instance.price_per_hour is None else f"{instance.price_per_hour:.2f} USD/h"
    parts = (
        instance.id,
        instance.name,
        instance.status,
        instance.ip,
        instance.type_name,
        instance.region,
        price,
    )
    return "  ".join(part for part in parts if part)


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def _tags(text: str | None) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in _listed(text)]
    wrong = next((key for key, equals, value in pairs if not (key and equals)), None)
    if wrong is not None:
        raise UsageError("not a list of tags", place=f"--tags {text}", next_step="Write KEY=VALUE,KEY=VALUE")
    return tuple((key, value) for key, _, value in pairs)


def _ids_in(path: str | None) -> list[str]:
    if path is None:
        return []
    from gpuproof.config.inventory import load_inventory

    hosts = load_inventory(path).hosts
    nameless = next((host for host in hosts if host.instance_id is None), None)
    if nameless is not None:
        raise UsageError("is not a Lambda instance", place=f"{nameless.place}: {nameless.name}")
    return [str(host.instance_id) for host in hosts]


class Deployed:
    """Collects instances as they are launched, and always saves them to disk."""

    def __init__(self, path: Path, requests: Sequence[LaunchRequest]) -> None:
        self._path = path
        self._requests = requests
        self._entries: list[dict[str, Any]] = []

    @property
    def ids(self) -> list[str]:
        """IDs of the instances launched so far."""
        return [entry["instance_ids"][0] for entry in self._entries]

    def add(self, instance_id: str) -> None:
        """Add a launched instance."""
        name = self._requests[min(len(self._entries), len(self._requests) - 1)].name
        self._entries.append({"instance_ids": [instance_id], "name": name})
        self._write()

    def complete(self, instances: Sequence[Instance]) -> None:
        """Add the details available once the instances are active: addresses, GPUs and prices."""
        for entry, instance in zip(self._entries, instances, strict=True):
            facts = {
                "ip": instance.ip,
                "hostname": instance.hostname,
                "region": instance.region,
                "status": instance.status,
                "gpus": instance.gpus,
                "gpu_type": instance.gpu_type,
                "price_per_hour": instance.price_per_hour,
            }
            entry |= {key: value for key, value in facts.items() if value is not None}
        self._write()

    def _write(self) -> None:
        import json

        first = self._requests[0]
        content = {
            "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "instance_type": first.type_name,
            "instance_count": len(self._requests),
            "name_prefix": first.name.rpartition("-")[0],
            "region": first.region,
            "instances": self._entries,
        }
        write_whole(self._path, json.dumps(content, indent=2) + "\n")


def read_text(path: Path) -> str:
    """Read a text file given by the user.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        return read_plain(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot be read: {reason}", place=str(path)) from error
