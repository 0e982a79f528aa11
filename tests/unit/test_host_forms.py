"""Hosts in the forms that people have: two spellings are one host, and errors name what was understood."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuproof.config.inventory import InventoryHost, load_inventory
from gpuproof.config.settings import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a home of the test's own: ~/.ssh/config is read."""
    path = tmp_path_factory.mktemp("home")
    (path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(path))
    return path


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
    with pytest.raises(ConfigError, match="no hosts in group 'cpu'"):
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
    assert inventory.notes == ("b is skipped: its status is booting",)


def test_two_spellings_of_a_host_are_one_with_a_note() -> None:
    inventory = load_inventory("n1,N1,n1.,n1:22,n2")
    assert [host.address for host in inventory.hosts] == ["n1", "n2"]
    assert inventory.notes[0] == "N1 is the same as n1: they count as one host"
    assert len(inventory.notes) == 3


@pytest.mark.parametrize(
    ("named", "cause"),
    [
        (
            "hosts:gpu",
            "neither host 'hosts' with a port ('gpu' is not a number) nor a file with a group",
        ),
        ("gpu[1-99999999]", "too many hosts"),
        ("gpu[1-", "not a range"),
        ("absent.yaml", "cannot be read"),
        ("absent/hosts", "cannot be read"),
    ],
)
def test_an_error_says_how_the_words_were_read(named: str, cause: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_inventory(named)
    assert cause in str(caught.value)


SSH_CONFIG = """Include conf.d/*
Match originalhost gpu1 exec "touch {home}/command"
  Port 99
Match !exec "touch {home}/command"
  Port 98
Host gpu1
  HostName 10.0.0.5
  User bob
  Port 2222
  IdentityFile ~/.ssh/a
  IdentityFile ~/.ssh/b
  IdentityFile ~/.ssh/absent
Host node* !node9
  HostName %h.example
  UserKnownHostsFile /dev/null
Host behind
  ProxyJump gate
Match final host last
  User final
Host *
  User everyone
"""


@pytest.fixture
def ssh_config(home: Path) -> Path:
    path = home / ".ssh" / "config"
    path.write_text(SSH_CONFIG.format(home=home))
    (home / ".ssh" / "conf.d").mkdir()
    included = (
        "Host far\n  HostName 10.9.9.9\nHost relayed\n  ProxyCommand nc %h %p\nHost none\n  ProxyJump none\n"
    )
    (home / ".ssh" / "conf.d" / "more").write_text(included)
    for key in "ab":
        (home / ".ssh" / key).touch()
    return path


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("gpu1", [("bob", "10.0.0.5", 2222)]),
        ("me@gpu1:22", [("me", "10.0.0.5", 22)]),
        ("node[8-9]", [("everyone", "node8.example", 22), ("everyone", "node9", 22)]),
        ("far,last", [("everyone", "10.9.9.9", 22), ("final", "last", 22)]),
        ("none,other", [("everyone", "none", 22), ("everyone", "other", 22)]),
    ],
)
def test_names_of_ssh_config(
    named: str, expected: list[tuple[str | None, str, int]], ssh_config: Path, tmp_path: Path
) -> None:
    assert reached(named) == expected
    (tmp_path / "hosts.txt").write_text(named.replace(",", "\n"))
    (tmp_path / "hosts.json").write_text(json.dumps(named.split(",")))
    for name in ("hosts.txt", "hosts.json"):
        assert reached(str(tmp_path / name)) == expected
    (tmp_path / "described.json").write_text(json.dumps([{"host": "gpu1"}]))
    assert reached(str(tmp_path / "described.json")) == [(None, "gpu1", 22)]


def test_a_user_of_the_command_line_goes_before_that_of_ssh_config(ssh_config: Path) -> None:
    (host,) = load_inventory("gpu1", user="me").hosts
    assert (host.name, host.user) == ("gpu1", "me")


def test_every_identity_file_that_is_there(ssh_config: Path) -> None:
    (host,) = load_inventory("gpu1").hosts
    assert host.identity_files == (str(ssh_config.with_name("a")), str(ssh_config.with_name("b")))
    ssh_config.write_text("Host gpu1\n  IdentityFile ~/.ssh/absent\n")
    inventory = load_inventory("gpu1")
    assert inventory.hosts[0].identity_files == ()
    assert inventory.notes == (f"IdentityFile of gpu1 does not exist: {ssh_config.with_name('absent')}",)


def test_no_command_of_ssh_config_is_run(ssh_config: Path, home: Path) -> None:
    skipped = f"{ssh_config}:{{}}: Match exec is skipped: its command is not run"
    assert load_inventory("gpu1").notes == (skipped.format(2), skipped.format(4))
    assert load_inventory("far").notes == (skipped.format(4),)
    assert not (home / "command").exists()


def test_what_of_ssh_config_is_not_used_is_noted_once(ssh_config: Path) -> None:
    note = f"{ssh_config}:15: UserKnownHostsFile is not used"
    assert load_inventory("node[1-2]").notes.count(note) == 1


@pytest.mark.parametrize(
    ("named", "file", "line", "option"),
    [("behind", "config", 17, "ProxyJump"), ("relayed", "conf.d/more", 4, "ProxyCommand")],
)
def test_a_way_to_a_host_that_is_not_followed(
    named: str, file: str, line: int, option: str, ssh_config: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_inventory(f"gpu1,{named}")
    (mistake,) = caught.value.mistakes
    assert mistake.place == f"{ssh_config.parent / file}:{line}"
    assert mistake.cause == f"{option} of {named} is not supported"
    (tmp_path / "hosts").write_text(f"{named} jump=me@gate:22\n")  # as the next step says
    assert mistake.next_step is not None
    assert f"{named} jump=" in mistake.next_step
    assert load_inventory(str(tmp_path / "hosts")).hosts[0].jump == "me@gate:22"


@pytest.mark.parametrize("named", ["gpu1,10.0.0.5:2222", "10.0.0.5:2222,gpu1", "bob@10.0.0.5:2222,gpu1"])
def test_an_alias_and_its_address_are_one_host(named: str, ssh_config: Path) -> None:
    inventory = load_inventory(named)
    assert [(host.name, host.user) for host in inventory.hosts] == [("gpu1", "bob")]
    assert inventory.notes[-1] == "10.0.0.5 is the same as gpu1: they count as one host"


def test_an_alias_and_its_address_with_another_user_are_refused(ssh_config: Path) -> None:
    with pytest.raises(ConfigError, match="duplicate of the host on line 1"):
        load_inventory("gpu1,me@10.0.0.5:2222")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Host a\n  Port many\n", "config line 2: Invalid Port integer value: many"),
        ("Include config\n", "its Include lines include each other"),
    ],
)
def test_an_ssh_config_that_cannot_be_read(text: str, cause: str, home: Path) -> None:
    (home / ".ssh" / "config").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_inventory("a")
    assert cause in str(caught.value)


@pytest.mark.parametrize(
    ("text", "tool", "step"),
    [
        ('{"Reservations": [{"Instances": [{"InstanceId": "i-1"}]}]}', "aws ec2", "PublicIpAddress"),
        ('[{"InstanceId": "i-1", "PublicIpAddress": "10.0.0.1"}]', "aws ec2", "--output json > hosts.json"),
        ('{"apiVersion": "v1", "kind": "List", "items": []}', "Kubernetes nodes", "--on kubernetes"),
        ("apiVersion: v1\nkind: List\nitems: []\n", "Kubernetes nodes", "kubectl get nodes -o jsonpath"),
        ("NAME   STATUS   ROLES    AGE\ngpu-1  Ready    <none>   3d\n", "Kubernetes nodes", "kubectl"),
        ('{"_meta": {"hostvars": {}}, "gpu": {"hosts": ["n1"]}}', "`ansible-inventory --list`", "--yaml"),
        ('{"version": 4, "terraform_version": "1.9.5", "resources": []}', "Terraform", "terraform output"),
        ('{"ips": {"sensitive": false, "value": ["10.0.0.1"]}}', "Terraform", "terraform output -json NAME"),
        ('ips = [\n  "10.0.0.1",\n]\n', "Terraform", "terraform output -json NAME"),
        (
            "PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\ngpu* up infinite 2 idle n[1-2]\n",
            "Slurm",
            "sinfo",
        ),
        ("NodeName=n1 Arch=x86_64 CoresPerSocket=32\n   CPUAlloc=0\n", "Slurm", "--on slurm"),
        ('{"sinfo": [], "meta": {}, "errors": []}', "Slurm", "sinfo -hN -o %N"),
        ("Host gpu1\n  HostName 10.0.0.5\n", "an ssh_config file", "--on ssh:NAME"),
    ],
)
def test_what_other_tools_print_is_named(text: str, tool: str, step: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_inventory(str(tmp_path / "hosts"))
    (mistake,) = caught.value.mistakes
    assert mistake.cause.startswith("this looks like ")
    assert tool in mistake.cause
    assert mistake.next_step is not None
    assert step in mistake.next_step


def test_what_the_commands_print_that_errors_name(tmp_path: Path) -> None:
    """The forms behind `aws … --output json`, `kubectl … jsonpath`, `terraform output -json`, `sinfo -hN`."""
    for text in (
        '[\n    "10.0.0.1",\n    "10.0.0.2"\n]\n',
        '["10.0.0.1","10.0.0.2"]\n',
        "10.0.0.1\n10.0.0.2\n",
    ):
        (tmp_path / "hosts").write_text(text)
        assert [address for _, address, _ in reached(str(tmp_path / "hosts"))] == ["10.0.0.1", "10.0.0.2"]


@pytest.mark.parametrize(
    ("old", "new", "line", "cause"),
    [
        ("ansible_port: 2222", "ansible_port: no", 6, "hosts.port"),
        ("        n2:", "        n2: spare", 7, "Ansible expects a mapping here, found 'spare'"),
        ("vars: {ansible_user: you}", "vars: [you]", 2, "Ansible expects a mapping here, found a list"),
        ("hosts: {front: }", "hosts: [front]", 9, "all.children.login.hosts: Ansible expects a mapping"),
    ],
)
def test_mistakes_in_ansible_s_yaml_have_their_line(
    old: str, new: str, line: int, cause: str, tmp_path: Path
) -> None:
    assert old in ANSIBLE_YAML
    (tmp_path / "hosts.yaml").write_text(ANSIBLE_YAML.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_inventory(str(tmp_path / "hosts.yaml"))
    assert f"hosts.yaml:{line}: " in str(caught.value)
    assert cause in str(caught.value)


@pytest.mark.parametrize(("text", "name"), [(ANSIBLE, "hosts.ini"), (ANSIBLE_YAML, "hosts.yaml")])
def test_variables_of_applications_in_ansible_are_none_of_ours(text: str, name: str, tmp_path: Path) -> None:
    more = {
        "hosts.ini": text.replace("ansible_user=you", "ansible_user=you\nport=8080\nrack=b2\ngpus=8"),
        "hosts.yaml": text.replace(
            "{ansible_user: you}", "{ansible_user: you, port: 8080, rack: b2, gpus: 8}"
        ),
    }
    (tmp_path / name).write_text(more[name])
    inventory = load_inventory(f"{tmp_path / name}:login")
    assert [(host.port, host.gpus) for host in inventory.hosts] == [(22, 8)]


@pytest.mark.parametrize(
    "keys",
    [
        '"host": "10.0.0.5", "hostname": "gpu1", "address": "10.0.0.9"',
        '"hostname": "gpu1", "address": "10.0.0.9", "host": "10.0.0.5"',
        '"ip": "10.0.0.5", "hostname": "gpu1"',
        '"hostname": "gpu1", "ip": "10.0.0.5"',
    ],
)
def test_the_address_of_a_host_does_not_depend_on_the_order_of_its_keys(keys: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text(f'{{"hosts": [{{{keys}}}]}}')
    assert reached(str(tmp_path / "hosts.json")) == [(None, "10.0.0.5", 22)]


@pytest.mark.parametrize(
    "text",
    [
        "host,user,port\n10.0.0.5,ubuntu,22\n",
        "# mine\nName, IP, User\ngpu1,10.0.0.5,ubuntu\n",
        "gpu1,10.0.0.5,ubuntu\n",
        '"host","user"\n"10.0.0.5","u"\n',
    ],
)
def test_a_table_is_no_list_of_hosts(text: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.csv").write_text(text)
    with pytest.raises(ConfigError, match="looks like a table"):
        load_inventory(str(tmp_path / "hosts.csv"))


@pytest.mark.parametrize(
    "text",
    ['{\n// mine\n"hosts": [{"host": "a"}]}', '{"hosts": [\n{"host": "a//b"}, /* x */\n{"host": "b"}]}'],
)
def test_a_comment_in_json_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text(text)
    with pytest.raises(ConfigError, match=r":2: a comment with // or /\*"):
        load_inventory(str(tmp_path / "hosts.json"))
