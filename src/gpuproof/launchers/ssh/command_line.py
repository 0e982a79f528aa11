"""The options that say which hosts are reached, and how; most are fields of `SshOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


def _option(flag: str, metavar: str | None, text: str, **keywords: Any) -> tuple[str, Mapping[str, Any]]:
    return flag, {"metavar": metavar, "help": text, **keywords}


OPTIONS = {
    "deployment_file": _option(
        "--deployment-file", "FILE", "Hosts to run on, as JSON or YAML: the same as --on ssh:FILE."
    ),
    "key": _option("--ssh-key", "FILE", "Private key; without it the agent's and ~/.ssh's."),
    "username": _option("--username", "NAME", "User to log in as, where the hosts' file names none."),
    "known_hosts": _option("--known-hosts", "FILE", "Host keys to trust (~/.ssh/known_hosts)."),
    "accept_new": _option(
        "--ssh-accept-new",
        None,
        "Trust and store the key of a host that is not in known_hosts yet; a changed key never.",
        is_flag=True,
    ),
    "max_workers": _option(
        "--max-workers", "N", "How many hosts work at the same time (all).", type=click.IntRange(1, 4096)
    ),
    "connect_timeout_s": _option(
        "--connect-timeout",
        "SECONDS",
        "Time that one attempt to connect may take (30).",
        type=click.FloatRange(0.1, 3600),
        default=30.0,
    ),
    "attempts": _option(
        "--connect-attempts",
        "N",
        "Attempts to connect, 5 s and then ever longer apart (3).",
        type=click.IntRange(1, 20),
        default=3,
    ),
    "lease_s": _option(
        "--lease",
        "SECONDS",
        "A host that loses contact for so long ends its ranks and cleans up (30).",
        type=click.FloatRange(2, 3600),
        default=30.0,
    ),
}
"""Name → the option, and keywords of `click.option`."""
