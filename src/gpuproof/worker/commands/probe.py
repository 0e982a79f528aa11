"""`python -m gpuproof.worker probe`: this host's facts as one JSON object on standard output.

With --multi-node, also report what this host contributes to a run over several hosts; with --master, whether
the hosts can connect. With --users, report only which devices the drivers list and how many processes use
each; torch is not imported.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from gpuproof import __version__

DRIVER_PATIENCE_S = 3.0
"""This deadline expires before the caller's own timeout, so that a hanging driver is reported to the
caller."""


def main(arguments: Sequence[str]) -> int:
    """Print the facts; if torch is missing, print those that do not need it, and the reason."""
    options = _parser().parse_args(arguments)
    if options.users:
        from gpuproof.devices.describe import describe_users

        sys.stdout.write(json.dumps({"users": describe_users(dict(os.environ))}, allow_nan=False) + "\n")
        return 0
    facts: dict[str, object] = {"gpuproof": __version__, "executable": sys.executable}
    facts["modules"] = {name: find_spec(name) is not None for name in ("psutil", "pynvml")}
    facts["compiler"] = shutil.which("c++") or shutil.which("g++")
    from gpuproof.worker.host.environment import describe_host, describe_system

    try:
        if options.framework == "tensorflow":
            from gpuproof.worker.tensorflow.mirrored import describe_framework, import_tensorflow

            facts |= describe_system(patience_s=DRIVER_PATIENCE_S)
            facts |= describe_framework(import_tensorflow())
        else:
            facts |= describe_host(device=options.device, patience_s=DRIVER_PATIENCE_S)
    except ImportError as error:
        facts |= {**describe_system(patience_s=DRIVER_PATIENCE_S), "torch_missing": str(error)}
    if options.multi_node:
        facts |= _multi_node(options)
    sys.stdout.write(json.dumps(facts, allow_nan=False) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpuproof.worker probe", description=__doc__)
    parser.add_argument("--users", action="store_true", help="only devices and the processes on them")
    parser.add_argument("--framework", choices=("torch", "tensorflow"), default="torch", help="what to query")
    parser.add_argument("--device", default="auto", help="also count this device type, from another package")
    parser.add_argument("--multi-node", action="store_true", help="also check networks and limits")
    parser.add_argument("--master", help="with --port: connect to the other hosts at this address of node 0")
    parser.add_argument("--port", type=int, help="the port of node 0")
    parser.add_argument("--node-rank", type=int, default=0, help="index of this host, from 0")
    parser.add_argument("--nodes", type=int, default=1, help="the total number of hosts")
    parser.add_argument("--wait", type=float, default=30.0, help="seconds to wait for the other hosts")
    return parser


def _multi_node(options: argparse.Namespace) -> dict[str, object]:
    from gpuproof.worker.host.fabric import describe_fabric
    from gpuproof.worker.host.meeting import MeetingPoint, meet

    facts: dict[str, object] = {"fabric": describe_fabric(os.environ), "meeting": None}
    if options.master is not None and options.port is not None:
        facts["meeting"] = meet(
            MeetingPoint(
                master=options.master,
                port=options.port,
                node_rank=options.node_rank,
                num_nodes=options.nodes,
                wait_s=options.wait,
            )
        )
    return facts
