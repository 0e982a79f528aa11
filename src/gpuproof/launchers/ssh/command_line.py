"""The options that define which hosts to reach, and how; most are fields of `SshOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from gpuproof.launchers.numbers import FiniteRange


def _option(flag: str, metavar: str | None, text: str, **keywords: Any) -> tuple[str, Mapping[str, Any]]:
    return flag, {"metavar": metavar, "help": text, **keywords}


OPTIONS = {
    "deployment_file": _option("--deployment-file", "FILE", "Host list in JSON/YAML; same as --on ssh:FILE."),
    "key": _option("--ssh-key", "FILE", "Private key; default: keys in the agent and ~/.ssh."),
    "username": _option("--username", "NAME", "User to log in as, if the hosts file does not specify one."),
    "known_hosts": _option("--known-hosts", "FILE", "Trusted host keys [default: ~/.ssh/known_hosts]."),
    "accept_new": _option(
        "--ssh-accept-new",
        None,
        "Trust and store keys of hosts that are not yet in known_hosts, but never a changed key.",
        is_flag=True,
    ),
    "max_workers": _option(
        "--max-workers",
        "N",
        "Maximum number of hosts working at the same time [default: all].",
        type=click.IntRange(1, 4096),
    ),
    "connect_timeout_s": _option(
        "--connect-timeout",
        "SECONDS",
        "Timeout per connection attempt [default: 30].",
        type=FiniteRange(0.1, 3600),
        default=30.0,
    ),
    "attempts": _option(
        "--connect-attempts",
        "N",
        "Number of connection attempts, starting 5 s apart with increasing delays [default: 3].",
        type=click.IntRange(1, 20),
        default=3,
    ),
    "lease_s": _option(
        "--lease",
        "SECONDS",
        "Time without contact after which a host stops its ranks and cleans up [default: 30].",
        type=FiniteRange(2, 3600),
        default=30.0,
    ),
}
"""Name → the option, and the keyword arguments for `click.option`."""
