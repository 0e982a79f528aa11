"""Load clients, started as users start them, in separate environments, and what each reports.

All three clients get the same load: prompts of 32 words from the same source, answers of 16 tokens, streamed
from `/v1/completions`, with constant gaps between requests, in one window at one rate. A peer's environment
is created once with `python -m venv` and pip under a folder given by the caller; if that fails, the peer is
reported as missing, with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import psutil

from gpuproof.records.work.serving import ServingSpec
from gpuproof.worker.serving.prompts import Prompts
from timed_commands import LAUNCHER_VARIABLES, gpuproof

PROMPT_TOKENS, NEW_TOKENS = 32, 16
PACKAGES = {"guidellm": "guidellm==0.8.1", "aiperf": "aiperf==0.13.0"}
SAMPLE_S = 0.5
LIMIT_S = 120.0
"""Time after which a client that does not exit is stopped: a minute or more beyond its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One window of one client."""

    url: str
    rate_per_s: int
    window_s: float
    seed: int
    folder: Path
    """Empty folder for the files that the client reads and writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """What a client reports for its window, and its resource use."""

    answered_per_s: float
    first_s: float
    gap_s: float
    cpu_s: float
    """CPU time of the client's command, including all child processes that it waited for."""
    memory_mib: float
    """Peak memory over all its processes: their private memory plus the largest shared part."""


@dataclass(frozen=True, slots=True)
class Client:
    """How to call a client, and where it writes its results."""

    command: Callable[[Ask], list[str]]
    read: Callable[[Path], tuple[float, float, float]]
    """Responses per second, median seconds to the first token, median seconds between tokens."""


def our_client() -> Client:
    """Return the client under test: the command in this checkout."""
    return Client(_our_command, _read_ours)


def _our_command(ask: Ask) -> list[str]:
    return gpuproof(
        *("run", "serving", "--serving.target=endpoint", "--serving.endpoint.api=completions"),
        *(f"--serving.endpoint.url={ask.url}/v1", "--serving.endpoint.model=twin"),
        *("--serving.endpoint.max_connections=4096", "--serving.arrivals=constant"),
        *(f"--serving.rate_per_s={ask.rate_per_s}", f"--serving.window_s={ask.window_s}"),
        *("--serving.min_requests=1", f"--serving.prompt_tokens={PROMPT_TOKENS}"),
        *(f"--serving.new_tokens={NEW_TOKENS}", "--run.run_id=r"),
        *("--run.repeats=1", "--monitoring.enabled=false", "--run.capture_env=false"),
    )


def _read_ours(folder: Path) -> tuple[float, float, float]:
    (window,) = json.loads((folder / "results/serving/r/run_summary.json").read_text())["windows"]
    first, gap = (
        window[f"{name}_s"]["p50"]["value"] for name in ("time_to_first_token", "inter_token_latency")
    )
    return window["answered_per_s"], first, gap


def peer_client(name: str, environments: Path) -> Client | str:
    """Return a peer from its environment, created if necessary, or the reason why there is none."""
    place = environments / PACKAGES[name]
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin/python"), "-m", "pip", "install", "--quiet", PACKAGES[name]],
    ):
        if (place / "bin" / name).exists():
            break
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            lines = [line for line in made.stderr.splitlines() if not line.startswith("WARNING")]
            return f"{' '.join(command[1:3])} exited with {made.returncode}: {(lines or ['no reason'])[-1]}"
    program = str(place / "bin" / name)
    make, read = {"guidellm": (_guidellm, _read_guidellm), "aiperf": (_aiperf, _read_aiperf)}[name]
    return Client(lambda ask: make(program, ask), read)


def _guidellm(program: str, ask: Ask) -> list[str]:
    backend = {"kind": "openai_http", "target": ask.url, "model": "twin"}
    words = {
        "backend": {**backend, "request_format": "/v1/completions", "validate_backend": False},
        "profile": {"kind": "constant", "rate": ask.rate_per_s},
        "constraint": {"kind": "max_duration", "seconds": ask.window_s},
        "data": {
            "kind": "json_file",
            "path": str(_prompts(ask, text="prompt", tokens="output_tokens_count")),
        },
        "output": {"kind": "json", "path": str(ask.folder / "guidellm.json")},
    }
    options = (word for name, value in words.items() for word in (f"--{name}", json.dumps(value)))
    return [program, "run", *options, "--disable-console"]


def _read_guidellm(folder: Path) -> tuple[float, float, float]:
    (benchmark,) = json.loads((folder / "guidellm.json").read_text())["benchmarks"]
    metrics = {
        name: benchmark["metrics"][name]["successful"]
        for name in ("requests_per_second", "time_to_first_token_ms", "inter_token_latency_ms")
    }
    first, gap = (
        metrics[name]["median"] / 1e3 for name in ("time_to_first_token_ms", "inter_token_latency_ms")
    )
    return metrics["requests_per_second"]["mean"], first, gap


def _aiperf(program: str, ask: Ask) -> list[str]:
    return [
        *(program, "profile", "--model", "twin", "--url", ask.url, "--endpoint-type", "completions"),
        *("--streaming", "--use-server-token-count", "--tokenizer", str(_tokenizer(ask.folder))),
        *("--input-file", str(_prompts(ask, text="text", tokens="output_length"))),
        *("--custom-dataset-type", "single_turn", "--extra-inputs", f"max_tokens:{NEW_TOKENS}"),
        *("--request-rate", str(ask.rate_per_s), "--arrival-pattern", "constant"),
        *("--benchmark-duration", str(ask.window_s), "--export-level", "summary"),
        *("--no-gpu-telemetry", "--no-server-metrics", "--ui", "none"),
        *("--artifact-dir", str(ask.folder / "aiperf")),
    ]


def _read_aiperf(folder: Path) -> tuple[float, float, float]:
    report = json.loads((folder / "aiperf/profile_export_aiperf.json").read_text())
    first, gap = (report[name]["p50"] / 1e3 for name in ("time_to_first_token", "inter_token_latency"))
    return report["request_throughput"]["avg"], first, gap


def _prompts(ask: Ask, *, text: str, tokens: str) -> Path:
    """Write more prompts than the window needs, with the column names that a client expects."""
    prompts = Prompts(ServingSpec(prompt_tokens=PROMPT_TOKENS, new_tokens=NEW_TOKENS), ask.seed)
    numbers = range(round(1.2 * ask.rate_per_s * ask.window_s) + 100)
    lines = (json.dumps({text: prompts.ask(number).prompt, tokens: NEW_TOKENS}) for number in numbers)
    path = ask.folder / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def _tokenizer(folder: Path) -> Path:
    """Write a word tokenizer: aiperf loads one even if the server's counts are used."""
    model = {"type": "WordLevel", "vocab": {"word": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    texts: Mapping[str, dict[str, Any]] = {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "pre_tokenizer": {"type": "Whitespace"},
            "model": model,
        },
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"},
    }
    place = folder / "tokenizer"
    place.mkdir()
    for name, value in texts.items():
        (place / name).write_text(json.dumps(value))
    return place


def run_client(client: Client, ask: Ask) -> Reported | str:
    """Run one window; return what the client reports, or the reason why it reports nothing."""
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    command, begin_s = client.command(ask), monotonic()
    with (ask.folder / "printed.txt").open("w") as printed:
        process = subprocess.Popen(
            command, cwd=ask.folder, env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed
        )
        memory = Memory(process.pid)
        while True:  # only wait4 returns the CPU time of this process and of all children it waited for
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if monotonic() - begin_s > ask.window_s + LIMIT_S:
                _kill_tree(process.pid)
            memory.is_over.wait(0.02)
        memory.is_over.set()
    process.returncode = os.waitstatus_to_exitcode(status)
    try:
        answered_per_s, first_s, gap_s = client.read(ask.folder)
    except (OSError, LookupError, TypeError, ValueError) as error:
        last = (ask.folder / "printed.txt").read_text().strip()[-300:]
        reason = f"{type(error).__name__}: {error}; it printed: {last}"
        return f"exited with {process.returncode}, and its report cannot be read ({reason})"
    return Reported(
        answered_per_s=answered_per_s,
        first_s=first_s,
        gap_s=gap_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        memory_mib=memory.most_mib,
    )


def _kill_tree(pid: int) -> None:
    parent = psutil.Process(pid)
    for process in (*parent.children(recursive=True), parent):
        process.kill()


class Memory:
    """Reads the memory of a process and its descendants until it exits."""

    def __init__(self, pid: int) -> None:
        self.is_over = Event()
        self.most_mib = 0.0
        Thread(target=self._watch, args=(psutil.Process(pid),), daemon=True).start()

    def _watch(self, parent: psutil.Process) -> None:
        while not self.is_over.wait(SAMPLE_S):
            own, shared = 0, 0
            try:
                for process in (parent, *parent.children(recursive=True)):
                    memory = process.memory_info()
                    own += memory.rss - memory.shared
                    shared = max(shared, memory.shared)
            except psutil.Error:  # a process has just exited
                continue
            self.most_mib = max(self.most_mib, (own + shared) / 2**20)
