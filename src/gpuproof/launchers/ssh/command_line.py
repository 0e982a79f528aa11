"""The options that say which hosts are reached, and how; most are fields of `SshOptions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

OPTIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "deployment_file": (
        "--deployment-file",
        {"metavar": "FILE", "help": "Hosts to run on, as JSON or YAML: the same as --on ssh:FILE."},
    ),
    "key": ("--ssh-key", {"metavar": "FILE", "help": "Private key; without it the agent's and ~/.ssh's."}),
    "username": (
        "--username",
        {"metavar": "NAME", "help": "User to log in as, where the hosts' file names none."},
    ),
    "known_hosts": (
        "--known-hosts",
        {"metavar": "FILE", "help": "Host keys to trust (~/.ssh/known_hosts)."},
    ),
    "accept_new": (
        "--ssh-accept-new",
        {
            "is_flag": True,
            "help": "Trust and store the key of a host that is not in known_hosts yet; a changed key never.",
        },
    ),
    "max_workers": (
        "--max-workers",
        {
            "type": click.IntRange(1, 4096),
            "metavar": "N",
            "help": "How many hosts work at the same time (all).",
        },
    ),
    "connect_timeout_s": (
        "--connect-timeout",
        {
            "type": click.FloatRange(0.1, 3600),
            "default": 30.0,
            "metavar": "SECONDS",
            "help": "Time that one attempt to connect may take (30).",
        },
    ),
    "attempts": (
        "--connect-attempts",
        {
            "type": click.IntRange(1, 20),
            "default": 3,
            "metavar": "N",
            "help": "Attempts to connect, 5 s and then ever longer apart (3).",
        },
    ),
    "lease_s": (
        "--lease",
        {
            "type": click.FloatRange(2, 3600),
            "default": 30.0,
            "metavar": "SECONDS",
            "help": "A host that loses contact for so long ends its ranks and cleans up (30).",
        },
    ),
}
"""Name → the option, and keywords of `click.option`."""
