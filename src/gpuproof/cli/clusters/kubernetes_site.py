"""`--on kubernetes`: what of a cluster a command is told, what run.json keeps of it, what --dry-run shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from gpuproof.cli.host_options import HostChoice
from gpuproof.errors import UsageError
from gpuproof.launchers.kubernetes.manifests import launch_manifests, launch_name
from gpuproof.launchers.kubernetes.options import KubernetesOptions, load_kubernetes_options
from gpuproof.launchers.kubernetes.pods import ARCHIVE, kubernetes_node
from gpuproof.launchers.kubernetes.text import manifests_text
from gpuproof.records.case import Case
from gpuproof.records.codec import to_json
from gpuproof.store import layout
from gpuproof.store.description import KUBERNETES
from gpuproof.suites.base import THIS_MACHINE, HostPlace

HOSTNAME = "kubernetes.io/hostname"


def read_options(choice: HostChoice, *, python: str | None) -> KubernetesOptions:
    """Read the options for Kubernetes.

    Raises:
        UsageError: the file is wrong, or something is asked for that a cluster cannot do.
    """
    if choice.one_job:
        raise UsageError(
            "the number of nodes of the one job is not given; the cluster chooses which",
            place="--one-job",
            next_step="Give it: --distributed.nodes=N",
        )
    options = load_kubernetes_options(choice.kubernetes) if choice.kubernetes else KubernetesOptions()
    return options.model_copy(update={"python": python or options.python})


def changed_options(options: KubernetesOptions, choice: HostChoice) -> KubernetesOptions:
    """Return how a run goes on: with other options where a file of them is named.

    Raises:
        UsageError: the file is wrong.
    """
    return load_kubernetes_options(choice.kubernetes) if choice.kubernetes else options


def pinned_places(options: KubernetesOptions) -> Sequence[HostPlace]:
    """Return the one node that all launches go to, one after the other; nothing where the cluster chooses.

    Where every pod has all GPUs of one named node to itself, a suite may go on with what it found there.
    """
    is_one = HOSTNAME in options.node_selector and options.max_launches == 1
    return THIS_MACHINE if is_one and options.gpus_per_node is not None else ()


def described_options(options: KubernetesOptions) -> dict[str, Any]:
    """Return what run.json keeps: the options."""
    return {KUBERNETES: options.model_dump(mode="json")}


def kept_options(description: Mapping[str, Any]) -> KubernetesOptions:
    """Read back what run.json keeps."""
    return KubernetesOptions.model_validate(description[KUBERNETES])


def show_manifests(cases: Iterable[Case], options: KubernetesOptions, run: Path) -> None:
    """Print the manifests of each launch, and in a comment why they are not to be applied by hand."""
    root = run.absolute()
    node = kubernetes_node(options, str(root))
    lacking = f"{ARCHIVE} has no content here" if options.claim is None else f"{root} is not there yet"
    click.echo(f"# To look at, not to apply: {lacking}, and by hand nobody would fetch or judge results.")
    for case in cases:
        spec = json.dumps(to_json(case), indent=2) + "\n"
        given = {ARCHIVE: b"", layout.SPEC: spec.encode()}
        if case.data_file is not None:
            given["data"] = b""
        name = launch_name(run.name, case)
        click.echo(
            manifests_text(launch_manifests(options, case, node, name=name, run="shown", given=given)),
            nl=False,
        )
