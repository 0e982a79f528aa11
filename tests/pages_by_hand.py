"""Pages and results written down by hand: one that has everything, and one whose every text is hostile."""

from __future__ import annotations

from gpuproof.records.page import (
    Axis,
    Cell,
    Chart,
    Commands,
    Fact,
    Files,
    Header,
    Measures,
    Notice,
    Notices,
    Page,
    Provenance,
    Reference,
    Series,
    Table,
    Text,
    Verdict,
)
from gpuproof.records.page.tables import Column, table
from gpuproof.records.result import Doubt, LaunchValue, Measure, MeasureInterval, Result
from gpuproof.records.run import Failure

THROUGHPUT = Measure(
    name="throughput",
    value=2000.0,
    unit="samples/s",
    text="2,000 samples/s",
    detail="95% interval 1,990 – 2,010 samples/s (3 launches)",
    uncertainty="±0.50 %",
    better="higher",
    num_samples=2400,
    launches=(
        LaunchValue(replicate=0, order=0, value=2004.0),
        LaunchValue(replicate=1, order=2, value=2000.0),
        LaunchValue(replicate=2, order=1, value=1996.0, start="fork"),
    ),
    interval=MeasureInterval(
        low=1990.0, high=2010.0, level=0.95, kind="between_launches", method="Student's t on the launches"
    ),
    validity="VALID",
)
MEASURES = (
    THROUGHPUT,
    Measure(
        name="p99 step",
        value=None,
        unit="s",
        text="–",
        missing="p99 needs 299 steps (have 40); p92 is at most 12.0 ms",
    ),
    Measure(
        name="model FLOP utilisation",
        value=0.101,
        unit="1",
        text="10 %",
        detail="model FLOP/s over 989.5 TFLOP/s, the dense bf16 peak: NVIDIA H200 data sheet, SXM, "
        "https://www.nvidia.com/en-us/data-center/h200/, which prints it with sparsity: halved",
    ),
    Measure(
        name="bus bandwidth",
        value=412.4e9,
        unit="B/s",
        text="412 GB/s",
        case="pair@a+b",
        subject="link/a>b",
        labels={"size_bytes": 1048576, "dtype": "bfloat16"},
    ),
)
HOSTS = (
    ("node-001", 8, 2001.0, Cell("VALID", "good")),
    ("node-002", 8, 1987.0, Cell("SUSPECT", "warn")),
    ("node-003", 4, 0.0, Cell("failed: out of memory at rank 3 while the batch was copied", "bad")),
)
LATENCY = Chart(
    title="Latency under load",
    kind="line",
    x=Axis(label="offered rate", unit="requests/s"),
    y=Axis(label="latency", unit="s", is_logarithmic=True),
    series=(
        Series(name="p50", points=((100, 0.0021), (200, 0.0022), (400, 0.0026), (800, 0.0041), (1600, 0.31))),
        Series(name="p99", points=((100, 0.0042), (200, 0.0047), (400, 0.0064), (800, 0.0163), (1600, 1.25))),
    ),
    references=(
        Reference(label="bound of the recipe", y=0.05),
        Reference(label="highest rate within it", x=800),
    ),
)
BUS = Chart(
    title="Bus bandwidth by message size",
    kind="line",
    x=Axis(label="message", unit="B", is_logarithmic=True),
    y=Axis(label="bus bandwidth", unit="B/s"),
    series=(
        Series(
            name="all_reduce",
            points=tuple((2.0**i, 440e9 * 2.0**i / (2.0**i + 2.0**22)) for i in range(10, 33, 2)),
        ),
    ),
    references=(Reference(label="data sheet", y=450e9),),
)
HOST_BARS = Chart(
    title="Hosts",
    kind="bar",
    x=Axis(label="host"),
    y=Axis(label="throughput", unit="samples/s"),
    series=tuple(Series(name=host, points=((0.0, rate),)) for host, _, rate, _ in HOSTS),
    references=(Reference(label="median", y=1987.0),),
)
COMMAND = "gpuproof run quick --run.repeats=4 --distributed.nproc=2 --run.notes='a note'"
PAGE = Page(
    title="resnet18 training on digits, 2 × NVIDIA H200, bf16, batch 20",
    verdict=Verdict(
        headline="2,000 samples/s",
        uncertainty="±0.50 %",
        word="SUSPECT",
        tone="warn",
        reason="use with care; 3 of 4 launches were measured",
        advice="Finish the run with --resume",
    ),
    provenance=Provenance(
        facts=(
            Fact("date", "2026-11-20 12:00 UTC"),
            Fact("host", "node-001, node-002"),
            Fact("device", "2 × NVIDIA H200"),
            Fact("driver", "nvidia 570.86"),
            Fact("torch", None, "no launch recorded the facts of its host"),
        ),
        command=Fact("command", COMMAND),
        details=(Fact("recipe", "quick, SHA-256 0123456789ab… of all its keys"),),
    ),
    sections=(
        Notices(
            title="What failed",
            notices=(
                Notice(
                    word="lost rank",
                    tone="bad",
                    text="the launch on node1: rank 0 ended by SIGKILL [9]: killed from outside",
                    advice="Look at stderr-0.txt and at dmesg; finish the run with --resume",
                ),
                Notice(word="environment", tone="bad", text="the launch on node4: setup: no route"),
            ),
        ),
        Measures(title="Results", measures=MEASURES),
        table(
            "Hosts",
            HOSTS,
            Column.of("host", lambda row: row[0], align="left"),
            Column.of("GPUs", lambda row: str(row[1])),
            Column.of("rate", lambda row: f"{row[2]:,.0f}"),
            Column.of("energy", lambda row: "–", is_optional=True),
            Column.of("how", lambda row: row[3], align="left", folds=True),
        ),
        HOST_BARS,
        LATENCY,
        BUS,
        Text(title="Mind", lines=("gloo moves data through host memory", "measured on 2 of 3 hosts")),
        Text(title="", lines=("a section without a title goes on",)),
        Files(
            title="Files",
            folder="results/examples/by-hand",
            names=("cases", "result.json", "run_summary.json", "summary.csv"),
        ),
        Commands(
            title="Next",
            commands=(
                "gpuproof run --resume results/examples/by-hand",
                "gpuproof report results/examples/by-hand --format html --output report.html",
            ),
        ),
    ),
)
RESULT = Result(
    suite="recipe",
    run_id="by-hand",
    gpuproof_version="0",
    validity="SUSPECT",
    verdict="SUSPECT",
    headline="2,000 samples/s ±0.50 %",
    exit_code=0,
    num_launches=3,
    num_planned=4,
    conditions={"device": "NVIDIA H200", "precision": "bf16"},
    doubts=(Doubt(validity="SUSPECT", code="few", reason="few launches", remedy="Run more"),),
    failures=(
        Failure(
            rank=0,
            host="node1",
            phase="measure",
            cause="lost_rank",
            message="killed",
            unix_s=1.0,
            steps_done=12,
        ),
    ),
    measures=MEASURES,
)

HOSTILE = (
    "[bold red]x[/] <script>alert(1)</script> </td> a|b **c** _d_ `e` ```f``` &lt; \\| \x1b[31m \u202e "
    "日本語🙂 \"quoted\" 'q' {{ 7 * 7 }} {% raw %} # - 1. ~~g~~ $h$ ]]> --> ![i](http://x/y) é\r\n"
    "second line\tend " + "w" * 300
)


def hostile_page(text: str = HOSTILE) -> Page:
    """Return a page whose every text is `text`."""
    axis = Axis(label=text, unit=text)
    cells = (Cell(text, "bad"), Cell(text))
    headers = (Header(title=text, align="left"), Header(title=text, folds=True))
    points = ((0.0, 1.0), (1.0, float("nan")), (2.0, 3.0))
    charts = tuple(
        Chart(
            title=text,
            kind=kind,
            x=axis,
            y=axis,
            series=(Series(name=text, points=points), Series(name=f"{text}2", points=points[:1])),
            references=(Reference(label=text, x=1.0), Reference(label=text, y=1.5)),
        )
        for kind in ("line", "scatter", "bar")
    )
    return Page(
        title=text,
        verdict=Verdict(headline=text, uncertainty=text, word=text, tone="bad", reason=text, advice=text),
        provenance=Provenance(
            facts=(Fact(text, text), Fact(text, None, text)),
            command=Fact(text, text),
            details=(Fact(text, text), Fact(text, None, text)),
        ),
        sections=(
            Measures(
                title=text,
                measures=(Measure(name=text, value=1.0, unit=text, text=text, detail=text),),
            ),
            Table(title=text, headers=headers, rows=(cells, cells)),
            Table(title=text, headers=headers, rows=(cells,), is_folded=True),
            *charts,
            Notices(title=text, notices=(Notice(word=text, tone="bad", text=text, advice=text),)),
            Text(title=text, lines=(text, text)),
            Commands(title=text, commands=(text,)),
            Files(title=text, folder=text, names=(text, text)),
        ),
    )


EMPTY_PAGE = Page(title="nothing yet", verdict=None, sections=())
HOLLOW_PAGE = Page(
    title="",
    verdict=Verdict(headline="", uncertainty="", word="NOTHING MEASURED", tone="bad", reason=""),
    sections=(
        Measures(title="Results", measures=()),
        Table(title="Hosts", headers=(), rows=()),
        Table(title="Types", headers=(Header(title="type"),), rows=()),
        Chart(title="Curve", kind="line", x=Axis(label="x"), y=Axis(label="y"), series=()),
        Chart(title="Bars", kind="bar", x=Axis(label="x"), y=Axis(label="y"), series=()),
        Chart(
            title="Point",
            kind="scatter",
            x=Axis(label="x", is_logarithmic=True),
            y=Axis(label="y", is_logarithmic=True),
            series=(Series(name="s", points=((0.0, -1.0),)), Series(name="t", points=())),
        ),
        Notices(title="What failed", notices=()),
        Text(title="Mind", lines=()),
        Commands(title="Next", commands=()),
        Files(title="Files", folder="", names=()),
    ),
)
