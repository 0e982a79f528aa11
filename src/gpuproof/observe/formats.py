"""Which format is this file? Loads a recording of any known format as `RecordingData`.

In: a path. Out: columns as `observe.recording` describes them. Every reader salvages what it can of a
file that was cut short, and says so in `notes`.
"""

from __future__ import annotations

from pathlib import Path

from gpuproof.observe.recording import RecordingData, load_recording


def load(path: Path) -> RecordingData:
    """Load a recording of whatever format.

    Raises:
        RecordError: the file cannot be read or is of no format that gpuproof knows.
    """
    return load_recording(path)
