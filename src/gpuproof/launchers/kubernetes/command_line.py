"""`gpuproof kubernetes verify | clean`: what a cluster offers, and what earlier runs left behind."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from gpuproof.base.errors import ExitCode
from gpuproof.base.outside import plain
from gpuproof.base.redaction import typed_command
from gpuproof.launchers.numbers import FiniteRange

if TYPE_CHECKING:
    from gpuproof.launchers.kubernetes.options import KubernetesOptions

OURS = "app.kubernetes.io/managed-by=gpuproof"
_options_option = click.option(
    "--options", "file", metavar="FILE", help="Launch options: the file passed to --on kubernetes:FILE."
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Only print planned requests and removals.")


@click.group()
def kubernetes() -> None:
    """Check a cluster before launches, and clean up afterwards."""


@kubernetes.command(short_help="Check whether nodes provide the resources that launches request.")
@_options_option
@_dry_run_option
@click.option("--json", "as_json", is_flag=True, help="Print only JSON on standard output.")
@click.pass_context
def verify(ctx: click.Context, *, file: str | None, dry_run: bool, as_json: bool) -> None:
    """Check, without starting anything, whether nodes provide the resources that launches request.

    To see how a pod sees a GPU, start a run: gpuproof run quick --on kubernetes --nproc 1
    """
    options = _read(file)
    if dry_run:
        click.echo("GET /api/v1/namespaces/NAMESPACE/pods\nGET /api/v1/nodes")
        return
    from gpuproof.launchers.kubernetes import checks as cluster_checks
    from gpuproof.launchers.kubernetes.api import Cluster
    from gpuproof.records.codec import to_json
    from gpuproof.report.terminal import show_page
    from gpuproof.store.provenance import of_command
    from gpuproof.verdict.check import ask, checks_in
    from gpuproof.verdict.facts import FleetFacts
    from gpuproof.verdict.page import outcomes_page

    with closing(Cluster(options)) as cluster:
        facts = FleetFacts(hosts={"cluster": {"nodes": cluster.nodes(), "options": options}})
    checks = ask(checks_in(cluster_checks), facts)
    if as_json:
        click.echo(json.dumps(to_json({"checks": checks}), indent=2, allow_nan=False))
    else:
        seen = cluster_checks.facts_seen(facts.hosts["cluster"], server=cluster.server)
        provenance = of_command(typed_command(), *seen)
        title = "What the cluster offers to launches"
        show_page(outcomes_page(title, ("", checks), provenance=provenance))
    is_unfit = any(judged.outcome.status in ("FAIL", "ERROR") for judged in checks)
    ctx.exit(ExitCode.UNFIT_ENVIRONMENT if is_unfit else ExitCode.DONE)


@kubernetes.command()
@_options_option
@click.option(
    "--older-than",
    "older_than_h",
    type=FiniteRange(0, 100_000),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Keep objects younger than this; older ones are removed even if they still run.",
)
@_dry_run_option
def clean(*, file: str | None, older_than_h: float, dry_run: bool) -> None:
    """Remove what launches of the options' engine left in the namespace.

    Objects are kept for a day: unless active_deadline_s is longer, Kubernetes has ended
    their launch by then. They are identified by the label app.kubernetes.io/managed-by=gpuproof.
    """
    from gpuproof.launchers.kubernetes.api import Cluster
    from gpuproof.launchers.kubernetes.manifests import KINDS, OBJECTS

    options = _read(file)
    before = datetime.now(UTC) - timedelta(hours=older_than_h)
    with closing(Cluster(options)) as cluster:
        for kind in (KINDS[options.engine], *OBJECTS):
            for left in cluster.objects(kind, OURS):
                if datetime.fromisoformat(left["metadata"]["creationTimestamp"]) > before:
                    continue
                done = "would remove" if dry_run else "removed"
                click.echo(plain(f"{done} {kind.kind} {left['metadata']['name']}"))
                if not dry_run:
                    cluster.delete(left["metadata"]["name"], left["metadata"]["uid"], kind)


def _read(file: str | None) -> KubernetesOptions:
    from gpuproof.launchers.kubernetes.options import KubernetesOptions, load_kubernetes_options

    return load_kubernetes_options(file) if file else KubernetesOptions()
