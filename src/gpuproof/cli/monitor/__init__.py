"""`gpuproof monitor`: the group of commands that watch devices."""

from __future__ import annotations

from gpuproof.cli.group import LazyGroup

COMMANDS: dict[str, str] = {
    "live": "gpuproof.cli.monitor.live:live",
    "devices": "gpuproof.cli.monitor.live:devices",
    "exec": "gpuproof.cli.monitor.record:exec_command",
    "record": "gpuproof.cli.monitor.record:record",
    "show": "gpuproof.cli.monitor.view:show",
    "compare": "gpuproof.cli.monitor.view:compare",
    "plot": "gpuproof.cli.monitor.view:plot",
    "serve": "gpuproof.cli.monitor.serve:serve",
    "alerts": "gpuproof.cli.monitor.serve:alerts",
}
"""Command name → `module:attribute`."""

monitor = LazyGroup(
    name="monitor",
    commands_by_path=COMMANDS,
    help="Monitor GPUs and host live, or record and review their readings.",
)
