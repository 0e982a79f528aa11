"""Hosts in the forms that people have: two spellings are one host, and errors name what was understood."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuproof.config.inventory import InventoryHost, load_inventory
from gpuproof.config.settings import ConfigError


def reached(named: str) -> list[tuple[str | None, str, int]]:
    return [(host.user, host.address, host.port) for host in load_inventory(named).hosts]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("node1,node2", [(None, "node1", 22), (None, "node2", 22)]),
        ("gpu[01-03]", [(None, "gpu01", 22), (None, "gpu02", 22), (None, "gpu03", 22)]),
        ("gpu[1,3],login", [(None, "gpu1", 22), (None, "gpu3", 22), (None, "login", 22)]),
        ("me@gpu[1-2]:2222", [("me", "gpu1", 2222), ("me", "gpu2", 2222)]),
        ("user@10.0.0.5:2222", [("user", "10.0.0.5", 2222)]),
        ("[::1]:22", [(None, "::1", 22)]),
        ("fe80::1", [(None, "fe80::1", 22)]),
    ],
)
def test_hosts_are_named_on_the_command_line(named: str, expected: list[tuple[str | None, str, int]]) -> None:
    assert reached(named) == expected


ANSIBLE = """[gpu]
n1 ansible_host=10.0.0.1 ansible_user=me ansible_port=2222
n2
[login]
front
[all:vars]
ansible_user=you
[cluster:children]
gpu
"""
ANSIBLE_YAML = """all:
  vars: {ansible_user: you}
  children:
    gpu:
      hosts:
        n1: {ansible_host: 10.0.0.1, ansible_port: 2222, ansible_user: me}
        n2:
    login:
      hosts: {front: }
"""


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("n1\nn2  # spare\n\n", "hosts", [(None, "n1", 22), (None, "n2", 22)]),
        ("me@n1:2200\ngpu[1-2]\n", "hosts", [("me", "n1", 2200), (None, "gpu1", 22), (None, "gpu2", 22)]),
        ("- n1\n- me@n2\n", "hosts.yaml", [(None, "n1", 22), ("me", "n2", 22)]),
        ('["n1", "n2"]', "hosts.json", [(None, "n1", 22), (None, "n2", 22)]),
        ("hosts: [n1, n2]\n", "hosts.yaml", [(None, "n1", 22), (None, "n2", 22)]),
        ("hosts: [{ip: n1, ssh_user: me}]\n", "hosts.yaml", [("me", "n1", 22)]),
        (ANSIBLE, "hosts.ini", [("me", "10.0.0.1", 2222), ("you", "n2", 22), ("you", "front", 22)]),
        (ANSIBLE_YAML, "hosts.yaml", [("me", "10.0.0.1", 2222), ("you", "n2", 22), ("you", "front", 22)]),
    ],
)
def test_files_of_hosts(
    text: str, name: str, expected: list[tuple[str | None, str, int]], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert reached(str(tmp_path / name)) == expected


@pytest.mark.parametrize(("text", "name"), [(ANSIBLE, "hosts.ini"), (ANSIBLE_YAML, "hosts.yaml")])
def test_a_group_of_an_inventory_of_ansible(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    expected = [("me", "10.0.0.1", 2222), ("you", "n2", 22)]
    assert reached(f"{tmp_path / name}:gpu") == expected
    if name == "hosts.ini":
        assert reached(f"{tmp_path / name}:cluster") == expected
    with pytest.raises(ConfigError, match="no hosts in a group 'cpu'"):
        load_inventory(f"{tmp_path / name}:cpu")


@pytest.mark.parametrize("text", ["n1 slots=8 max_slots=8\n", "hosts: [{host: n1, gpus: '8'}]\n"])
def test_slots_and_quoted_numbers_are_gpus(text: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    (host,) = load_inventory(str(tmp_path / "hosts")).hosts
    assert (host.address, host.gpus) == ("n1", 8)


def test_what_lambda_s_api_answers(tmp_path: Path) -> None:
    def instance(name: str, ip: str | None, status: str) -> dict[str, object]:
        kind = {"name": "gpu_8x_h100_sxm5", "specs": {"gpus": 8}}
        return {"name": name, "ip": ip, "status": status, "region": {"name": "us"}, "instance_type": kind}

    listed = {"data": [instance("a", "203.0.113.7", "active"), instance("b", None, "booting")]}
    (tmp_path / "i.json").write_text(json.dumps(listed))
    inventory = load_inventory(str(tmp_path / "i.json"))
    (host,) = inventory.hosts
    assert isinstance(host, InventoryHost)
    assert (host.name, host.address, host.user, host.gpus) == ("a", "203.0.113.7", "ubuntu", 8)
    assert inventory.notes == ("b is left out: its status is booting",)


def test_two_spellings_of_a_host_are_one_with_a_note() -> None:
    inventory = load_inventory("n1,N1,n1.,n1:22,n2")
    assert [host.address for host in inventory.hosts] == ["n1", "n2"]
    assert inventory.notes[0] == "N1 is n1 again: one host"
    assert len(inventory.notes) == 3


@pytest.mark.parametrize(
    ("named", "cause"),
    [
        (
            "hosts:gpu",
            "neither a host 'hosts' with a port, since 'gpu' is no number, nor a file with a group",
        ),
        ("gpu[1-99999999]", "too many hosts"),
        ("gpu[1-", "no range"),
        ("absent.yaml", "cannot be read"),
        ("absent/hosts", "cannot be read"),
    ],
)
def test_an_error_says_how_the_words_were_read(named: str, cause: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_inventory(named)
    assert cause in str(caught.value)
