"""`gpuproof doctor`: what this machine has, what is missing, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gpuproof.base.errors import ExitCode, UsageError
from gpuproof.base.redaction import typed_command
from gpuproof.cli.options import json_option, print_json, verbose_option
from gpuproof.launchers.numbers import FiniteRange

if TYPE_CHECKING:
    from gpuproof.doctor.meeting import Part
    from gpuproof.records.outcome import Judged


@click.command()
@click.option("--python", metavar="PATH", help="Python to inspect, instead of the one that runs gpuproof.")
@click.option("--multi-node", is_flag=True, help="Also check networks, limits and NCCL settings.")
@click.option(
    "--master",
    metavar="HOST",
    envvar="MASTER_ADDR",
    help="Address of node 0, to which all hosts connect (or MASTER_ADDR).",
)
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(1, 65_535),
    envvar="MASTER_PORT",
    help="Port of node 0 (or MASTER_PORT).",
)
@click.option(
    "--node-rank",
    metavar="N",
    type=click.IntRange(min=0),
    envvar="NODE_RANK",
    default=0,
    show_default=True,
    help="Rank of this host, starting at 0 (or NODE_RANK).",
)
@click.option(
    "--nodes",
    metavar="N",
    type=click.IntRange(min=1),
    envvar="NNODES",
    default=1,
    show_default=True,
    help="Number of hosts (or NNODES).",
)
@click.option(
    "--wait",
    "wait_s",
    type=FiniteRange(0.1, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the other hosts.",
)
@click.option(
    "--sku",
    metavar="NAME",
    help="Product that this machine is expected to be; a missing GPU is a failure, anything else missing "
    "a warning.",
)
@json_option
@verbose_option
@click.pass_context
def doctor(
    ctx: click.Context,
    *,
    python: str | None,
    multi_node: bool,
    master: str | None,
    port: int | None,
    node_rank: int,
    nodes: int,
    wait_s: float,
    sku: str | None,
    as_json: bool,
) -> None:
    """Report this machine's hardware, software, problems and fixes.

    With --multi-node, also report whether this machine can take part in a run across several hosts. Start the
    command on all hosts with the same --master, --port and --nodes, each with its own --node-rank, to find
    what blocks communication between them:

    \b
    gpuproof doctor --multi-node --master 10.0.0.1 --port 29500 --nodes 2 --node-rank 0

    Exit code 0 if this machine can run measurements, 5 if not.
    """  # noqa: D301  # click reads the backspace character
    from gpuproof.launchers.probe import probe

    if not multi_node:
        _refuse_meeting(ctx)
    part = _part(master, port, node_rank, nodes) if multi_node else None
    words = _words(part, wait_s) if multi_node else []
    facts = probe(python, words=words, wait_s=wait_s if words else 0.0)
    checks, between = _ask({**facts, "part": part}, multi_node=multi_node, sku=sku)
    if as_json:
        print_json({"checks": checks, "multi_node": between, "facts": facts})
    else:
        _show(facts, ("This machine", checks), ("Over several hosts", between))
    unfit = any(judged.outcome.status in ("FAIL", "ERROR") for judged in (*checks, *between))
    ctx.exit(ExitCode.UNFIT_ENVIRONMENT if unfit else ExitCode.DONE)


def _refuse_meeting(ctx: click.Context) -> None:
    """Reject options of --multi-node without it; values from the environment are not options."""
    for name in ("master", "port", "node_rank", "nodes", "wait_s"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.removesuffix('_s').replace('_', '-')}"
            raise UsageError(
                "is for --multi-node", place=option, next_step=f"Add --multi-node, or omit {option}"
            )


def _show(facts: Mapping[str, Any], *groups: tuple[str, list[Judged]]) -> None:
    from gpuproof.cli.report import show_page
    from gpuproof.store.provenance import of_machine
    from gpuproof.verdict.page import outcomes_page

    provenance = of_machine(facts, command=typed_command())
    show_page(outcomes_page("What this machine can measure", *groups, provenance=provenance))


def _part(master: str | None, port: int | None, node_rank: int, nodes: int) -> Part | None:
    from gpuproof.doctor.meeting import Part

    if node_rank >= nodes:
        raise click.UsageError(f"--node-rank {node_rank} does not fit --nodes {nodes}: nodes count from 0.")
    if (master is None) != (port is None):
        raise click.UsageError("--master and --port must be given together.")
    if master is None or port is None:
        return None
    return Part(master=master, port=port, node_rank=node_rank, num_nodes=nodes)


def _words(part: Part | None, wait_s: float) -> list[str]:
    words = ["--multi-node"]
    if part is not None:
        words += [f"--master={part.master}", f"--port={part.port}", f"--node-rank={part.node_rank}"]
        words += [f"--nodes={part.num_nodes}", f"--wait={wait_s:g}"]
    return words


def _ask(facts: Mapping[str, Any], *, multi_node: bool, sku: str | None) -> tuple[list[Judged], list[Judged]]:
    """Check this machine, and with `multi_node` also its role in a run across several hosts."""
    from gpuproof.doctor import host, meeting, network
    from gpuproof.verdict import nccl_settings
    from gpuproof.verdict.check import ask, checks_in
    from gpuproof.verdict.checks import host as settings
    from gpuproof.verdict.checks import sku as product
    from gpuproof.verdict.facts import FleetFacts

    here = FleetFacts(hosts={facts["host"]: facts}, sku=sku)
    modules = (network, nccl_settings, meeting) if multi_node else ()
    between = [item for module in modules for item in ask(checks_in(module), here)]
    on_this = [item for module in (host, settings, product) for item in ask(checks_in(module), here)]
    return on_this, between
