"""Inventories: both forms are read, and what is wrong is told by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuproof.config.inventory import load_inventory
from gpuproof.config.settings import ConfigError


def written(folder: Path, text: str, name: str = "hosts.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def mistakes_in(folder: Path, text: str) -> list[str]:
    path = written(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_inventory(path)
    return [str(mistake).removeprefix(path) for mistake in caught.value.mistakes]


def test_a_plain_list_with_defaults(tmp_path: Path) -> None:
    inventory = load_inventory(
        written(
            tmp_path,
            "currency: EUR\ndefaults: {user: me, price_per_hour: 2.5, python: /opt/py}\nhosts:\n"
            "  - host: 10.0.0.1\n    gpus: 8\n    jump: you@gate:2222\n"
            "  - {host: gpu-2, name: second, user: other, port: 2200, gpu_type: H100, price_per_hour: 3}\n",
        )
    )
    first, second = inventory.hosts
    assert (first.name, first.address, first.user, first.port, first.gpus) == (
        "10.0.0.1",
        "10.0.0.1",
        "me",
        22,
        8,
    )
    assert (first.jump, first.python, first.price_per_hour) == ("you@gate:2222", "/opt/py", 2.5)
    assert (second.name, second.address, second.user, second.port) == ("second", "gpu-2", "other", 2200)
    assert (second.gpu_type, second.price_per_hour, second.python) == ("H100", 3.0, "/opt/py")
    assert inventory.currency == "EUR"
    assert second.place.endswith("hosts.yaml:7")


def test_json_with_tabs_is_read_as_well(tmp_path: Path) -> None:
    text = '{\n\t"hosts": [\n\t\t{"host": "a"},\n\t\t{"host": "b"}\n\t]\n}\n'
    hosts = load_inventory(written(tmp_path, text, "hosts.json")).hosts
    assert [(host.name, host.place.rpartition(":")[2]) for host in hosts] == [("a", "3"), ("b", "4")]


def test_a_deployment_of_lambdactl(tmp_path: Path) -> None:
    text = """{"timestamp": 1763650000, "instance_type": "gpu_1x_a100", "instance_count": 3,
    "name_prefix": "cluster", "instances": [{"instance_ids": ["i-1", "i-2"]},
    {"instance_ids": ["i-3"], "ip": "203.0.113.7", "user": "me", "gpu_type": "A100"}]}"""
    hosts = load_inventory(written(tmp_path, text, "cluster.json")).hosts
    assert [(host.instance_id, host.address, host.user) for host in hosts] == [
        ("i-1", "", "ubuntu"),
        ("i-2", "", "ubuntu"),
        ("i-3", "203.0.113.7", "me"),
    ]


def test_every_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    text = """hosts:
  - host: a
    prot: 22
  - host: b
    port: 70000
  - name: nameless
  - host: "c; rm -rf /"
  - host: -oProxyCommand=x
  - host: d
    jump: "gate; x"
    gpus: eight
"""
    told = mistakes_in(tmp_path, text)
    assert [line.split(":")[1] for line in told] == ["3", "5", "6", "7", "8", "10", "11"]
    assert told[0] == ":3: hosts.prot: unknown key. Perhaps you mean port."
    assert "expected 65535 or less, found 70000" in told[1]
    assert "the key host is missing" in told[2]


def test_a_host_that_is_named_twice(tmp_path: Path) -> None:
    told = mistakes_in(tmp_path, "hosts:\n  - host: a\n  - host: b\n  - {host: a, name: other}\n")
    assert told == [":4: hosts: other is a duplicate of the host on line 2. Name each host once."]
    told = mistakes_in(tmp_path, "hosts:\n  - host: a\n  - {host: b, name: a}\n")
    assert told[0].startswith(":3: hosts: a is a duplicate of the host on line 2")
    two_ports = written(tmp_path, "hosts:\n  - host: a\n  - {host: a, port: 23, name: b}\n")
    assert len(load_inventory(two_ports).hosts) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ":1: the file is empty."),
        ("hosts: [\n", ":1: not YAML: "),
        ('{"hosts": [\n\t{"host": "a"}\n\t{"host": "b"}]}', ":3: not YAML: "),
        ('{"hosts": [\n\t{"host" "b"}]}', "Look for a missing comma, colon, quote or bracket"),
        ("nodes: []\n", "neither `hosts:` nor `instances:`"),
        ("hosts: []\n", "at least 1 of them"),
        ("hosts:\n  - host: a\n    host: b\n", ":3: hosts.0.host: this key was already given on line 2."),
        ("hosts:\n  - &x {host: a}\n", ":2: hosts.0: anchors, aliases and merge keys are rejected"),
        ('{"instances": [{"instance_ids": ["a", "b"], "ip": "10.0.0.1"}]}', "one address for 2 instances"),
        ("hosts:\n  - host: a\n    price_per_hour: -1\n", "more than 0"),
    ],
)
def test_what_is_no_inventory(tmp_path: Path, text: str, told: str) -> None:
    assert told in mistakes_in(tmp_path, text)[0]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_inventory(str(tmp_path / "none.json"))
