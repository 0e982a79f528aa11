"""Manifests as a person reads them, and as kubectl takes them."""

from __future__ import annotations

import io
from collections.abc import Sequence

from ruamel.yaml import YAML

from gpuproof.launchers.kubernetes.pods import Manifest


def manifests_text(manifests: Sequence[Manifest]) -> str:
    """Write manifests as YAML; of what is binary only the key, since nobody reads the rest."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.width = 100_000
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # an option without a type
    output = io.StringIO()
    for manifest in manifests:
        shown = manifest
        if "binaryData" in manifest:
            shown = {**manifest, "binaryData": dict.fromkeys(manifest["binaryData"], "")}
        output.write("---\n")
        writer.dump(shown, output)
    return output.getvalue()
