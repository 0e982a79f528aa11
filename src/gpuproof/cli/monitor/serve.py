"""`gpuproof monitor serve` and `alerts`: readings for Prometheus, and alert rules for them."""

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
"""Name of the file to write → template in the package."""
LOOK_S = 0.5
"""Interval, in seconds, at which to check whether the readings have ended."""


@click.command("serve")
@click.option("--address", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Listen address.")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65535),
    default=9837,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@interval_option
@click.option("--devices", metavar="0,2", help="Physical indices to serve, e.g. 0,2 (default: all).")
@click.option("--tls-cert", type=_FILE, help="Certificate for serving HTTPS, PEM; needs --tls-key.")
@click.option("--tls-key", type=_FILE, help="The certificate's private key, PEM.")
@click.option(
    "--password-file",
    type=_FILE,
    help="File with one line USER:PASSWORD that scrapes must send (mode 600).",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name that scrapes use for this machine, besides its own name and addresses; may be repeated.",
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

    Listens on loopback by default, because readings reveal what a machine is used for and contain the names
    of pods and batch jobs. `gpuproof monitor alerts` writes the alerts and the Grafana dashboard. SOURCE
    works as in `live`.

    \b
    Example:
      gpuproof monitor serve --port 9837 & curl -s http://127.0.0.1:9837/metrics | grep power
      gpuproof monitor serve --interval 15 --textfile /var/lib/node_exporter
    """  # noqa: D301  # click reads the backspace character
    require("prometheus_client", "serve")
    if not address:  # an empty address is every address of this machine
        raise UsageError("no address is given", place="--address", next_step="Give one, or 0.0.0.0 for all")
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
        click.echo("gpuproof: without --tls-cert the password is sent in clear text", err=True)
    running = start(records, address=address, port=port, access=access)
    click.echo(f"gpuproof: serving {running.url}", err=True)
    _until_stopped(running, LOOK_S, each_time=lambda: None)


def _write_textfile(records: Records, folder: Path, *, access: Access, interval_s: float) -> None:
    from gpuproof.observe.prometheus.exporter import serve_textfile

    if access.certificate is not None or access.password is not None:
        raise UsageError("does not listen, so a certificate or password has no effect", place="--textfile")
    running = serve_textfile(records, folder)
    click.echo(f"gpuproof: writing {running.path}", err=True)
    _until_stopped(running, interval_s, each_time=running.write)


def _until_stopped(
    running: RunningExporter | TextfileExporter, pause_s: float, *, each_time: Callable[[], None]
) -> None:
    """Run until a signal arrives or the readings end; raise the error if reading failed."""
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
    """Write Prometheus alert rules and a Grafana dashboard to FOLDER.

    List gpuproof_alerts.yml under `rule_files` in prometheus.yml; import gpuproof_dashboard.json in Grafana
    (Dashboards, New, Import). Existing files are overwritten.

    \b
    Example:
      gpuproof monitor alerts /etc/prometheus/rules
    """  # noqa: D301  # click reads the backspace character
    for path in write_prometheus_files(folder):
        click.echo(path)


def write_prometheus_files(folder: Path) -> list[Path]:
    """Write every file to a folder, creating the folder if needed; return the files' paths.

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
