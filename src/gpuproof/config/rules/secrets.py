"""A run stores its config so that it can resume; for secrets, it stores only the variable names.

`base.redaction` decides what looks like a secret. A command gets its secrets from the environment in which it
is started (`command.env: {NAME: null}`), and so does the client of an endpoint
(`serving.endpoint.api_key_variable`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpuproof.base.errors import UsageError
from gpuproof.base.redaction import redacted, words_with_secrets
from gpuproof.config.rules.base import Facts, Refusal, Refusals

if TYPE_CHECKING:
    from gpuproof.config.models import RunConfig

HOW = (
    "Set a variable where gpuproof is started, list it in command.env with the value null, and "
    "read it in the command"
)


def commands_hold_no_secret(config: RunConfig) -> Refusals:
    """Reject passwords, keys and tokens, found by context, in a command's arguments and variables."""
    if held := [str(index + 1) for index in words_with_secrets(list(map(str, config.command.argv)))]:
        many = "words" if len(held) > 1 else "word"
        yield Refusal(
            keys=("command.argv", "command"),
            cause=f"{many} {', '.join(held)} of the command must not be a secret: it is stored with the run",
            next_step=HOW,
        )
    for name, value in config.command.env.items():
        if value is not None and list(words_with_secrets([f"{name}={value}", str(value)])):
            yield Refusal(
                keys=(f"command.env.{name}", "command.env"),
                cause="its value looks like a secret (by name or form), and is stored with the run",
                next_step="Set it where gpuproof is started, and write null here",
            )


def other_texts_hold_no_secret(config: RunConfig) -> Refusals:
    """Reject a secret in any other text; an endpoint's URL has its own rule, which allows no secrets."""
    elsewhere = config.model_dump(exclude={"command": True, "serving": {"endpoint": {"url"}}})
    for key, text in _texts(elsewhere):
        if redacted(text) != text:
            yield Refusal(
                keys=(key,),
                cause="it is stored with the run, and contains a user, a password or a key",
                next_step="Remove it; read keys from a variable, or fetch the data by hand",
            )


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text nested in `value`, with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, below in value.items():
            yield from _texts(below, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for below in value:
            yield from _texts(below, key)


def variables_are_set(config: RunConfig, facts: Facts) -> Refusals:
    """Reject a local run if its secrets are not in its environment; elsewhere, the launch reports it."""
    if facts.hosts != () or facts.is_attached:
        return
    variables = {
        f"command.env.{name}": name
        for name, value in config.command.env.items()
        if config.kind == "command" and value is None
    }
    if (variable := config.serving.endpoint.api_key_variable) is not None:
        variables["serving.endpoint.api_key_variable"] = variable
    for key, name in variables.items():
        if not facts.environment.get(name):
            yield Refusal(
                keys=(key, key.rpartition(".")[0]),
                cause=f"the variable {name} is not set, and runs do not store its value",
                next_step=f"Set {name} where gpuproof is started, also for --resume",
            )


def refuse_unset_variables(config: RunConfig, environment: Mapping[str, str]) -> None:
    """Reject resuming a run on this machine if its secrets are not set.

    Raises:
        UsageError: a variable is not set.
    """
    for refusal in variables_are_set(config, Facts(hosts=(), environment=environment)):
        raise UsageError(refusal.cause, place=refusal.keys[0], next_step=refusal.next_step)
