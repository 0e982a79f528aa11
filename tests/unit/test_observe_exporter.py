"""The exporter, scraped over HTTP, judged by promtool and read by a real Prometheus server."""

from __future__ import annotations

import itertools
import json
import re
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import gpuproof
import recordings as rec
from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.observe.prometheus.exporter import DeviceCollector, Feed, RunningExporter, serve
from gpuproof.records.journal import decode, encode
from gpuproof.records.metrics import METRICS, THROTTLE_COUNTERS, names
from gpuproof.records.ports import PortReading, PortTotals
from gpuproof.records.readings import DeviceProcesses, DriverEvent, Sample, UnavailableMetrics
from ports import free_ports
from prometheus_tools import tool
from waiting import eventually

DASHBOARD = Path(gpuproof.__file__).parent / "templates" / "grafana_dashboard.json"


def full_sample(at_s: float = 0.0) -> Sample:
    """Every metric of the catalogue on GPU 0, with the value 50; only power on GPU 1."""
    everything = dict.fromkeys((*names(kind="gauge"), *names(kind="counter")), 50.0)
    host = dict.fromkeys(
        (
            "cpu_percent",
            "cpu_iowait_percent",
            "cpu_max_core_percent",
            "load_1min",
            "mem_used_bytes",
            "net_rx_bytes",
        ),
        25.0,
    )
    return rec.sample(
        at_s, {0: everything, 1: {"power_w": 75.0}}, reasons={0: ("thermal_software",)}, host=host
    )


def everything_known() -> list[Any]:
    static = dict.fromkeys(names(kind="static"), 40.0)
    port = PortReading(name="mlx5_0:1", medium="rdma", counters={"symbol_error": 3, "port_xmit_data": 9})
    user = {"pid": 1, "mem_used_bytes": 2**30, "kind": "compute", "pod": "train-0", "namespace": "team"}
    return [
        rec.header([rec.identity(0, static=static), rec.identity(1, static={})], fast_interval_s=600.0),
        full_sample(),
        PortTotals(monotonic_s=rec.MONOTONIC_S, at="start", ports=(port,), missing={}),
        DeviceProcesses(monotonic_s=rec.MONOTONIC_S, devices={"0": {"processes": [user]}}),
        DriverEvent(monotonic_s=rec.MONOTONIC_S, physical_index=0, event="xid", code=79, message="XID 79"),
    ]


def feeding(records: list[Any], stop: threading.Event) -> Generator[Any, None, None]:
    """Give the records once, then a fresh sample each tenth of a second until told to stop."""
    yield from records
    for n in itertools.count(1):
        yield None
        if stop.wait(0.1):
            return
        yield full_sample(float(n))


@pytest.fixture
def serving() -> Iterator[RunningExporter]:
    stop = threading.Event()
    running = serve(feeding(everything_known(), stop), address="127.0.0.1", port=0)
    eventually("readings", lambda: "gpuproof_sampler_up 1.0" in scrape(running))
    yield running
    stop.set()
    running.reader.join()
    running.close()


def scrape(running: RunningExporter) -> str:
    with urllib.request.urlopen(running.url, timeout=300) as answer:
        text: str = answer.read().decode()
    return text


def value(text: str, metric: str, /, **labels: str) -> float | None:
    """Find the one line of a metric with these labels."""
    for line in text.splitlines():
        head, _, number = line.rpartition(" ")
        if head.partition("{")[0] == metric and all(f'{k}="{v}"' in head for k, v in labels.items()):
            return float(number)
    return None


def test_ports_are_served_by_host_port_and_counter(serving: RunningExporter) -> None:
    assert value(scrape(serving), "gpuproof_port_events_total", port="mlx5_0:1", counter="symbol_error") == 3
    assert "port_xmit_data" not in scrape(serving)


def test_readings_are_served_in_base_units_and_under_dcgms_names(serving: RunningExporter) -> None:
    text = scrape(serving)
    gpu = {"index": "0", "uuid": "GPU-0000", "name": "Fake GPU 80", "host": "node7"}
    assert value(text, "gpuproof_gpu_power_watts", **gpu) == 50.0
    assert value(text, "gpuproof_gpu_utilization_ratio", **gpu) == 0.5
    assert value(text, "gpuproof_gpu_clock_sm_hertz", **gpu) == 50e6
    assert value(text, "gpuproof_gpu_energy_joules_total", **gpu) == 50.0
    assert value(text, "gpuproof_gpu_throttle_reason", reason="thermal_software", **gpu) == 1.0
    assert value(text, "gpuproof_gpu_throttle_reason", reason="power_cap", **gpu) == 0.0
    assert value(text, "gpuproof_gpu_throttle_seconds_total", reason="thermal", **gpu) == 50.0
    assert value(text, "gpuproof_host_cpu_busy_ratio", host="node7") == 0.25
    dcgm = {"gpu": "0", "UUID": "GPU-0000", "Hostname": "node7"}
    assert value(text, "DCGM_FI_DEV_GPU_UTIL", **dcgm) == 50.0
    assert value(text, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", **dcgm) == 50_000.0
    assert value(text, "DCGM_FI_DEV_FB_USED", **dcgm) == 50 / 2**20


@pytest.mark.parametrize("path", ["/", "/nope", "/metrics/nope"])
def test_another_path_is_answered_with_where_readings_are(serving: RunningExporter, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(serving.url.removesuffix("/metrics") + path, timeout=300)
    with refused.value as answer:
        assert (answer.code, answer.read()) == (HTTPStatus.NOT_FOUND, b"readings are at /metrics\n")


def test_a_reading_that_is_not_there_has_no_line(serving: RunningExporter) -> None:
    text = scrape(serving)
    assert value(text, "gpuproof_gpu_power_watts", index="1") == 75.0
    assert value(text, "gpuproof_gpu_utilization_ratio", index="1") is None
    assert value(text, "gpuproof_gpu_throttle_reason", index="1") is None


def test_every_metric_of_the_catalogue_is_exported(serving: RunningExporter) -> None:
    text = scrape(serving)
    for row in METRICS.values():
        name = row.exported + ("_total" if row.kind == "counter" else "")
        assert row.name in THROTTLE_COUNTERS or value(text, name, index="0") is not None, name
        assert row.dcgm is None or value(text, row.dcgm, gpu="0") is not None, row.dcgm


def test_names_that_are_no_text_are_served_as_far_as_they_are() -> None:
    """Half of a UTF-16 pair, as a driver's garbage may hold it, cannot be written as UTF-8."""
    identity = replace(rec.identity(0, static={}), name="GPU \udcff\ud800 X")
    lines = [encode(rec.header([identity])), encode(rec.sample(0, {0: {"power_w": 75.0}}))]
    assert "\\udcff" in lines[0]
    feed = Feed(fresh_until_s=200.0)
    feed.state.apply([decode(line) for line in lines])
    registry = CollectorRegistry()
    registry.register(DeviceCollector(feed, clock=lambda: 100.0))
    text = generate_latest(registry).decode()
    assert 'name="GPU    X"' in text
    assert value(text, "gpuproof_gpu_power_watts", index="0") == 75.0


def test_a_lost_device_and_a_stopped_sampler_serve_nothing_old() -> None:
    now_s = 100.0
    feed = Feed(fresh_until_s=200.0)
    feed.state.apply(everything_known())
    lost = UnavailableMetrics(monotonic_s=rec.MONOTONIC_S + 1, physical_index=0, reasons={"power_w": "lost"})
    feed.state.apply([lost, rec.sample(1, {1: {"power_w": 76.0}})])
    collector = DeviceCollector(feed, clock=lambda: now_s)

    def served() -> dict[str, list[str]]:
        return {f.name: [s.labels.get("index", "") for s in f.samples] for f in collector.collect()}

    assert served()["gpuproof_gpu_power_watts"] == ["1"]
    now_s = 200.0
    assert list(served()) == ["gpuproof_sampler_up"]


def test_when_the_records_end_the_readings_are_withdrawn() -> None:
    running = serve((record for record in everything_known()), address="127.0.0.1", port=0)
    running.reader.join()
    text = scrape(running)
    running.close()
    assert value(text, "gpuproof_sampler_up") == 0.0
    assert "gpuproof_gpu_power_watts" not in text


def test_a_port_that_is_taken_is_an_error_with_its_place() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentUnfitError, match=rf"127\.0\.0\.1:{port}: .*--port"):
            serve((record for record in list[Any]()), address="127.0.0.1", port=port)


def test_the_dashboard_queries_only_what_is_exported(serving: RunningExporter) -> None:
    text = scrape(serving)
    served = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if line[:1] != "#"}
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [v["definition"] for v in dashboard["templating"]["list"] if v["type"] == "query"]
    asked = {name for query in queries for name in re.findall(r"\b(?:gpuproof|DCGM)_\w+", query)}
    assert len(asked) > 15
    assert asked <= served
    places = [tuple(panel["gridPos"][k] for k in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_the_same_port_answers_openmetrics_to_who_asks_for_it(serving: RunningExporter) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    asked = urllib.request.Request(serving.url, headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(asked, timeout=300) as answer:
        kind, text = answer.headers["Content-Type"], answer.read().decode()
    assert kind.startswith("application/openmetrics-text")
    families = {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    assert families["gpuproof_gpu_energy_joules"].type == "counter"
    assert families["DCGM_FI_DEV_FB_FREE"].type == "unknown"


def test_promtool_finds_no_fault(serving: RunningExporter) -> None:
    checked = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=scrape(serving), text=True, capture_output=True
    )
    assert (checked.stdout, checked.stderr, checked.returncode) == ("", "", 0)


def test_a_real_prometheus_scrapes_and_answers_the_dashboards_queries(
    serving: RunningExporter, tmp_path: Path
) -> None:
    program = tool("prometheus")
    where = urllib.parse.urlparse(serving.url).netloc
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 5s, scrape_timeout: 5s}\n"
        f"scrape_configs: [{{job_name: gpuproof, static_configs: [{{targets: ['{where}']}}]}}]\n",
        encoding="utf-8",
    )
    base = f"http://127.0.0.1:{free_ports()}"
    log = (tmp_path / "log").open("wb")
    server = subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={base.removeprefix('http://')}",
        ],
        stdout=log,
        stderr=log,
    )
    try:
        rows = eventually("a scrape", lambda: query(base, "gpuproof_gpu_power_watts"))
        watts = {row["metric"]["index"]: row["value"][1] for row in rows}
        assert watts == {"0": "50", "1": "75"}
        dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                query(base, target["expr"].replace("$host", ".*").replace("$uuid", ".*"))
    finally:
        server.terminate()
        server.wait()
        log.close()


def query(base: str, expression: str) -> list[Any]:
    """Ask a Prometheus server, empty while it starts; a query that it cannot parse raises."""
    address = f"{base}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    try:
        with urllib.request.urlopen(address, timeout=300) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        return []
    except OSError:
        return []
    assert body["status"] == "success"
    rows: list[Any] = body["data"]["result"]
    return rows
