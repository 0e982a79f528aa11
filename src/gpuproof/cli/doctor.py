"""`gpuproof doctor`: what this machine has, what will be missing, and what to do."""

from __future__ import annotations

import click

from gpuproof.cli.options import json_option, node_side_for
from gpuproof.errors import ExitCode

MARKS = {"ok": "[green]ok[/]", "limited": "[yellow]limited[/]", "missing": "[bold red]missing[/]"}


@click.command()
@click.option("--python", metavar="PATH", help="Look at what this Python has, instead of our own.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, python: str | None, *, as_json: bool) -> None:
    """Say what this machine has, what will be missing, and what to do about it.

    Exit code 0 if runs can be measured here, 5 if not.
    """
    import sys

    from gpuproof.launchers.probe import probe
    from gpuproof.report.diagnosis import diagnose

    with node_side_for(python) as worker:
        facts = probe(python or sys.executable, worker=worker)
    checks = diagnose(facts)
    if as_json:
        import json

        from gpuproof.records.codec import to_json

        click.echo(json.dumps({"checks": to_json(checks), "facts": facts}, indent=2))
    else:
        from rich.markup import escape
        from rich.table import Table

        from gpuproof.cli.report import standard_output
        from gpuproof.report.terminal import write

        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for check in checks:
            advice = f". [dim]{escape(check.next_step)}.[/]" if check.next_step else ""
            table.add_row(check.name, MARKS[check.status], escape(check.found) + advice)
        write(standard_output(), table)
    missing = any(check.status == "missing" for check in checks)
    ctx.exit(ExitCode.UNFIT_ENVIRONMENT if missing else ExitCode.DONE)
