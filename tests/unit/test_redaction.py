"""No secret of a known name, form or value gets through the one redactor, and other text does."""

from __future__ import annotations

import asyncio
import json
import string
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuproof.base.errors import UsageError
from gpuproof.base.redaction import redacted, redacted_with_count, redacted_words, words_with_secrets
from gpuproof.config.load import load_config
from gpuproof.config.rules.base import Facts
from gpuproof.config.settings import ConfigError
from gpuproof.records.run import Failure
from gpuproof.records.work.serving import EndpointSpec, ServingSpec
from gpuproof.worker.host.environment import describe_host
from gpuproof.worker.host.fabric import describe_fabric
from gpuproof.worker.serving.endpoint import EndpointLoad
from gpuproof.worker.serving.prompts import Prompts

WORD = st.text(string.ascii_letters + string.digits, min_size=12, max_size=40)
NAMED = ("NCCL_AUTH", "TORCH_PASSWD", "HF_TOKEN", "MY_API_KEY", "AWS_SECRET_ACCESS_KEY", "db_password")
FORMS = (
    "{name}={secret}",
    "{name}='{secret}'",
    '{{"{name}": "{secret}"}}',
    '{{\\"{name}\\": \\"{secret}\\"}}',
    "https://me:{secret}@host:1/v1",
    "socks5://{secret}@host",
    "Authorization: Bearer {secret}",
    "-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----",
)


@settings(max_examples=60, deadline=None)
@given(secret=WORD, name=st.sampled_from(NAMED), before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_secret_of_a_known_form_is_taken_out(secret: str, name: str, before: str, after: str) -> None:
    assume(secret not in before + after)
    for form in FORMS:
        told = f"{before} {form.format(name=name, secret=secret)} {after}"
        assert secret not in redacted(told), form
        assert secret not in str(UsageError(told)), form


@settings(max_examples=60, deadline=None)
@given(secret=WORD, cut=st.integers(0, 40), before=st.text(max_size=20))
def test_a_known_secret_is_taken_out_wherever_it_was_cut(secret: str, cut: int, before: str) -> None:
    left = f"{before} {secret}{secret[: max(8, cut)]}"
    assert secret[:8] not in redacted(left, secrets=[secret]).removeprefix(before)


@pytest.mark.parametrize(
    "text",
    [
        "http://host:8000/v1 took 3 s",
        "mail me@host",
        "tokens=400, max_tokens: 4",
        "PWD=/home/me OMP_NUM_THREADS=8 NCCL_SOCKET_IFNAME=eth0",
        "ssh user@10.0.0.1: connection refused",
        "step_time_ms: 12.5; key: data.batch_size",
    ],
)
def test_other_text_is_left_as_it_is(text: str) -> None:
    assert redacted_with_count(text) == (text, 0)


def test_a_failure_holds_no_secret() -> None:
    text = "NCCL_AUTH=hunter2hunter2"
    failure = Failure(
        rank=0, host="h", phase="x", cause="exception", unix_s=0.0, message=text, traceback=text, stacks=text
    )
    assert "hunter2" not in repr(failure)


def test_variables_of_a_host_are_told_without_secrets() -> None:
    told = describe_host(
        {
            "NCCL_AUTH": "hunter2",
            "NCCL_CRED": "hunter2",
            "TORCH_PASSWD": "hunter2",
            "TORCH_SESSION": "hunter2",
            "NCCL_TOPO_FILE": "http://me:hunter2@host/topology.xml",
            "NVIDIA_API_KEY": "hunter2",
            "CUDA_PROXY": "http://me:hunter2@proxy",
            "TF_VAR_database": "hunter2",
            "TF_CLI_CONFIG_FILE": "/home/hunter2/terraform",
            "TF_XLA_FLAGS": "--tf_xla_auto_jit=2",
            "KMP_AFFINITY": "compact",
        },
        device="cpu",
    )["environment"]
    assert "hunter2" not in repr(told)
    assert (told["KMP_AFFINITY"], told["TF_XLA_FLAGS"]) == ("compact", "--tf_xla_auto_jit=2")
    assert told["TORCH_SESSION"] == told["NCCL_CRED"] == "redacted"


def test_variables_of_a_fabric_are_told_without_secrets() -> None:
    variables = describe_fabric({"UCX_CRED": "hunter2", "NCCL_CRED": "hunter2", "UCX_TLS": "rc"})["variables"]
    assert variables == {"NCCL_CRED": "redacted", "UCX_CRED": "redacted", "UCX_TLS": "rc"}


async def answered(answer: bytes, spec: EndpointSpec) -> str | None:
    """Return why a request fails to which the server responded with so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        url = f"http://127.0.0.1:{port}/v1"
        load = EndpointLoad(
            spec=EndpointSpec(
                url=url, model="m", api_key_variable=spec.api_key_variable, timeout_s=20.0, max_connections=1
            ),
            prompts=Prompts(ServingSpec(new_tokens=4, prompt_tokens=4), 0),
        )
        failure = (await load.request(0, scheduled_s=0.0, begin_s=0.0)).failure
        load._close()
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    await asyncio.sleep(0.01)  # for both sides of the connection to be let go
    return failure


KEY = "hunter2-0123456789abcdef"
QUOTED = json.dumps(KEY)
ECHOES = (
    f"HTTP/1.1 401 No\r\nContent-Length: 60\r\n\r\n{'bad key ' + KEY:<60}",
    f"HTTP/1.1 401 No\r\nContent-Length: 210\r\n\r\n{'x' * 180}{KEY:<30}",
    f"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\ndata: {QUOTED:<54}",
    f"HTTP/1.1 {KEY}\r\n\r\n",
    f"{KEY}\r\n\r\n",
    f"HTTP/1.1 200 OK\r\n{KEY}\r\n\r\n",
)


@pytest.mark.parametrize("echo", ECHOES, ids=range(len(ECHOES)))
def test_a_key_that_the_server_echoes_is_not_told(echo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", KEY)
    spec = EndpointSpec(
        url="http://a/v1", model="m", api_key_variable="OWN_KEY", timeout_s=20.0, max_connections=1
    )
    failure = asyncio.run(answered(echo.encode(), spec))
    assert failure is not None
    assert KEY[:8] not in failure


def test_an_address_with_a_password_is_not_kept(tmp_path: Path) -> None:
    words = ["--data.name=CIFAR10", f"--data.path={tmp_path}", "--data.download=true"]
    with pytest.raises(ConfigError) as caught:
        load_config("quick", [*words, "--data.download_url=https://me:hunter2@host/x.tar.gz"])
    assert "hunter2" not in str(caught.value)


OPTIONS = ("--api-key", "--token", "-db_password", "--hf-token", "--client_secret", "--wandb.api_key")


@settings(max_examples=60, deadline=None)
@given(
    secret=WORD, option=st.sampled_from(OPTIONS), before=st.lists(st.text("ab -=.", max_size=9), max_size=3)
)
def test_a_secret_among_the_words_of_a_command_is_found(secret: str, option: str, before: list[str]) -> None:
    assume(not secret.isdigit())
    for told in ([option, secret], [f"{option}={secret}"], [f"X_TOKEN={secret}"], [f"s3://u:{secret}@host"]):
        words = ["python", *before, *told]
        assert secret not in " ".join(redacted_words(words))
        assert [*words_with_secrets(words)] == [len(words) - 1]


@pytest.mark.parametrize(
    "words",
    [
        ("python", "train.py", "--max-token", "400", "--pad_token=<pad>", "--tokenizer", "gpt2"),
        ("sh", "-c", "API_KEY=$MINE ./train && git clone ssh://git@host/x"),
        ("--token", "--verbose", "--token={token}"),
    ],
)
def test_references_and_numbers_are_no_secrets(words: tuple[str, ...]) -> None:
    assert [*words_with_secrets(words)] == []


COMMANDS = """
argv: [python, x, --api-key, hunter2hunter2]
argv: [curl, "https://me:hunter2hunter2@host/x"]
{argv: [ls], env: {WANDB_API_KEY: hunter2hunter2}}
{argv: [ls], env: {TRACKER: "https://me:hunter2hunter2@host"}}
"""


@pytest.mark.parametrize("command", COMMANDS.strip().splitlines())
def test_a_command_with_a_secret_is_refused_without_telling_it(command: str, tmp_path: Path) -> None:
    recipe = tmp_path / "c.yaml"
    recipe.write_text(f"kind: command\ncommand:\n  {command}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"c.yaml:3: command.*stored with the run") as caught:
        load_config(str(recipe))
    assert "hunter2" not in str(caught.value)


def test_notes_with_a_secret_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"run.notes: it is stored with the run") as caught:
        load_config("quick", ["--run.notes=NCCL_AUTH=hunter2hunter2"])
    assert "hunter2" not in str(caught.value)


def test_a_secret_comes_by_a_variable_and_must_be_set_on_this_machine(tmp_path: Path) -> None:
    recipe = tmp_path / "c.yaml"
    recipe.write_text("kind: command\ncommand:\n  argv: [ls]\n  env: {MY_KEY: null}\n", encoding="utf-8")
    load_config(str(recipe), facts=Facts(hosts=(), environment={"MY_KEY": "x"}))
    load_config(str(recipe), facts=Facts(hosts=None))
    with pytest.raises(ConfigError, match=r"c.yaml:4: command.env.MY_KEY: the variable MY_KEY is not set"):
        load_config(str(recipe), facts=Facts(hosts=()))
