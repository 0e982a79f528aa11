"""What format is a file in? Loads a recording of any known format as `RecordingData`.

The input is a path. The output is columns as described in `readings.recording`. Supported formats: gpuproof's
JSON Lines, gputop's array and multi-GPU array, `gpu_stats_*` arrays, a dict with `samples`, nvidia-smi's CSV,
`dmon -o DT` and `-q -x`. Every reader recovers as much as possible from a truncated file and reports the
truncation in `notes`. Output of a tool that does not record timestamps is recognised, and the error names the
tool.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from gpuproof.base.errors import RecordError
from gpuproof.base.files import open_plain
from gpuproof.readings.recording import RecordingData, load_recording

KNOWN = (
    "gpuproof's JSON Lines, gputop's JSON, gpu_stats_*.json, {samples: […]}, and of nvidia-smi CSV, "
    "`dmon -o DT` and `-q -x`"
)
_UNTIMED: Final = {
    rb'\{\s*"card\d+"\s*:|device,': "rocm-smi --json or --csv",
    rb'[\[{][^\]]*"gfx_activity"|gpu,': "amd-smi metric --json or --csv",
    rb"#\s*Entity\b": "dcgmi dmon",
}
"""Start of a file → the tool that wrote it, for tools that do not record when a reading was taken."""
_START_BYTES = 4096


def load(path: Path, *, metrics: Collection[str] | None = None) -> RecordingData:
    """Load a recording of any format; if metrics are given, load only those from our own format.

    Raises:
        RecordError: the file cannot be read or is not in a format that gpuproof knows.
    """
    try:
        with open_plain(path) as file:
            start = file.read(_START_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise RecordError(error.strerror or str(error), place=str(path)) from error
    if not start:
        raise RecordError("is empty", place=str(path), next_step="Create one with `gpuproof monitor record`")
    if start.startswith(b'{"kind":'):
        return load_recording(path, metrics=metrics)
    return _load_of_others(path, start)


def _load_of_others(path: Path, start: bytes) -> RecordingData:
    """Load another tool's recording, recognised by its first bytes."""
    if tool := next((name for begin, name in _UNTIMED.items() if re.match(begin, start, re.DOTALL)), None):
        raise RecordError(
            f"looks like output of {tool}, which does not record when a reading was taken",
            place=str(path),
            next_step="Record with `gpuproof monitor record FILE`; on NVIDIA you can also use "
            "`nvidia-smi --query-gpu=timestamp,index,utilization.gpu,power.draw "
            "--format=csv -l 1`",
        )
    if start.startswith((b"<?xml", b"<nvidia_smi_log")):
        from gpuproof.readings.formats.nvidia_smi import load_query

        return load_query(path)
    if re.match(rb"#.*\bgpu\b", start):
        from gpuproof.readings.formats.nvidia_smi import load_dmon

        return load_dmon(path)
    if start.startswith((b"[", b"{")):
        from gpuproof.readings.formats.json_rows import load_json

        return load_json(path)
    if b"," in start.partition(b"\n")[0]:
        from gpuproof.readings.formats.nvidia_smi import load_csv

        return load_csv(path)
    raise RecordError("not in a format that gpuproof reads", place=str(path), next_step=f"It reads {KNOWN}")
