"""`gpuproof monitor serve` and `alerts`: readings for Prometheus, and the rules that it judges them by."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.cli.monitor.view import interval_option, records_of, require

if TYPE_CHECKING:
    from gpuproof.observe.prometheus.access import Access
    from gpuproof.observe.prometheus.exporter import RunningExporter, TextfileExporter
    from gpuproof.observe.stream import Records

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
PROMETHEUS_FILES: Mapping[str, str] = {
    "gpuproof_alerts.yml": "prometheus_alerts.yaml",
    "gpuproof_dashboard.json": "grafana_dashboard.json",
}
"""Name that is written → template of the package."""
LOOK_S = 0.5
"""How soon the end of the readings is noticed."""


@click.command("serve")
@click.option(
    "--address", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on."
)
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=9837,
    show_default=True,
    help=("Port to listen on; 0 takes a free one."),
)
@interval_option
@click.option("--devices", metavar="0,2", help="Physical indices to serve, such as 0,2 (all).")
@click.option("--tls-cert", type=_FILE, help="Certificate to serve HTTPS with, PEM; needs --tls-key.")
@click.option("--tls-key", type=_FILE, help="The certificate's private key, PEM.")
@click.option(
    "--password-file", type=_FILE, help="File of one line USER:PASSWORD that a scrape has to give (mode 600)."
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name that scrapes call this machine by, beside its own and addresses; may be repeated.",
)
@click.option(
    "--textfile",
    type=_FOLDER,
    help="Write gpuproof.prom into this folder of node_exporter's textfile collector instead of listening.",
)
@click.argument("source", required=False)
def serve(
    *,
    address: str,
    port: int,
    interval: float,
    devices: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    password_file: Path | None,
    allowed_hosts: tuple[str, ...],
    textfile: Path | None,
    source: str | None,
) -> None:
    """Serve readings to Prometheus at /metrics until Ctrl-C.

    On loopback by default: readings tell what a machine is used for, and name pods and batch jobs.
    `gpuproof monitor alerts` writes the alerts and the Grafana dashboard. SOURCE is as for `live`.

    \b
    Example:
      gpuproof monitor serve --port 9837 & curl -s http://127.0.0.1:9837/metrics | grep power
      gpuproof monitor serve --interval 15 --textfile /var/lib/node_exporter
    """  # noqa: D301  # click reads the backspace character
    require("prometheus_client", "serve")
    from gpuproof.observe.prometheus.access import read_access

    access = read_access(certificate=tls_cert, key=tls_key, password_file=password_file, hosts=allowed_hosts)
    records = records_of(source, interval=interval, devices=devices, processes="owners")
    if textfile is not None:
        _write_textfile(records, textfile, access=access, interval_s=interval)
    else:
        _answer(records, address=address, port=port, access=access)


def _answer(records: Records, *, address: str, port: int, access: Access) -> None:
    from gpuproof.observe.prometheus.exporter import serve as start

    if access.password is not None and access.certificate is None and address not in ("127.0.0.1", "::1"):
        click.echo("gpuproof: without --tls-cert the password is sent in clear", err=True)
    running = start(records, address=address, port=port, access=access)
    click.echo(f"gpuproof: serving {running.url}", err=True)
    _until_stopped(running, LOOK_S, each_time=lambda: None)


def _write_textfile(records: Records, folder: Path, *, access: Access, interval_s: float) -> None:
    from gpuproof.observe.prometheus.exporter import serve_textfile

    if access.certificate is not None or access.password is not None:
        raise UsageError(
            "listens on no address, and has no use for a certificate or password", place="--textfile"
        )
    running = serve_textfile(records, folder)
    click.echo(f"gpuproof: writing {running.path}", err=True)
    _until_stopped(running, interval_s, each_time=running.write)


def _until_stopped(
    running: RunningExporter | TextfileExporter, pause_s: float, *, each_time: Callable[[], None]
) -> None:
    """Go on until a signal ends it or its readings end; raise why they failed."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, lambda *_: stop.set())
    while not stop.wait(pause_s) and running.reader.is_alive():
        each_time()
    running.stop()
    if running.feed.failure is not None:
        raise running.feed.failure


@click.command("alerts")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def alerts(*, folder: Path) -> None:
    """Write alert rules for Prometheus and the dashboard for Grafana into FOLDER.

    gpuproof_alerts.yml is named under `rule_files` of prometheus.yml; gpuproof_dashboard.json is imported in
    Grafana (Dashboards, New, Import). Files that are there are replaced.

    \b
    Example:
      gpuproof monitor alerts /etc/prometheus/rules
    """  # noqa: D301  # click reads the backspace character
    for path in write_prometheus_files(folder):
        click.echo(path)


def write_prometheus_files(folder: Path) -> list[Path]:
    """Write every file into a folder, which is made if need be; return their paths.

    Raises:
        EnvironmentUnfitError: the folder cannot be written to.
    """
    from gpuproof.base.files import write_text

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentUnfitError(error.strerror or str(error), place=str(folder)) from error
    templates = files("gpuproof") / "templates"
    for name, template in PROMETHEUS_FILES.items():
        write_text(folder / name, (templates / template).read_text(encoding="utf-8"))
    return [folder / name for name in PROMETHEUS_FILES]
