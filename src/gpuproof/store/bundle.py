"""Pack and open evidence archives: the files behind a verdict, with hashes and without secrets.

When the recipient opens the archive, each file is checked against its SHA-256 hash, and the run is evaluated
again from the files. A file that was changed, added or removed is rejected and reported by name. The manifest
itself also has a hash, which the sender shares through another channel, because anyone who can change the
archive can change the manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from gpuproof.base.errors import RecordError
from gpuproof.base.files import aside
from gpuproof.base.outside import parse_json
from gpuproof.base.redaction import redacted_with_count
from gpuproof.store import layout
from gpuproof.store.run import RunDirectory

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1
SUFFIXES = (".json", ".jsonl", ".txt")
"""The files of a launch that serve as evidence; samples, traces and images are not."""
MAX_FILE_BYTES = 2**30
MAX_FILES = 1_000_000


def write_bundle(run: RunDirectory, path: Path) -> str:
    """Write the archive; return the SHA-256 of its manifest.

    Raises:
        EnvironmentUnfitError: the archive cannot be written.
    """
    contents = {name: _clean(text) for name, text in _evidence(run)}
    manifest = {
        "schema_version": MANIFEST_VERSION,
        "run_id": run.description()["run_id"],
        "files": {name: _sha256(content) for name, (content, _) in contents.items()},
        "redacted": {name: count for name, (_, count) in contents.items() if count},
    }
    listing = (json.dumps(manifest, indent=2) + "\n").encode()
    with aside(path) as place, tarfile.open(place, "w:gz") as archive:
        for name, content in ((MANIFEST, listing), *((name, file[0]) for name, file in contents.items())):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return _sha256(listing)


def open_bundle(path: Path, folder: Path) -> tuple[RunDirectory, str]:
    """Unpack an archive into an empty folder; return the run in it and the SHA-256 of its manifest.

    Raises:
        RecordError: the file is not an archive, or a file in it does not match the manifest.
    """
    try:
        with tarfile.open(path, "r:gz") as archive:
            contents = dict(_read(archive, path))
    except (tarfile.TarError, OSError, EOFError) as error:
        raise RecordError(f"not an evidence archive: {error}", place=str(path)) from error
    manifest = contents.pop(MANIFEST, None)
    if manifest is None:
        raise RecordError("not an evidence archive: it has no manifest.json", place=str(path))
    _check(contents, _hashes(manifest, path), path)
    for name, content in contents.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return RunDirectory.open(folder), _sha256(manifest)


def _evidence(run: RunDirectory) -> Iterator[tuple[str, str]]:
    """Yield the files that the verdict is based on: the request, and the files of each launch."""
    result = run.root / layout.RESULT
    launches = sorted(path for path in (run.root / layout.CASES).glob("*/*/*") if path.suffix in SUFFIXES)
    for path in (run.root / layout.DESCRIPTION, *([result] if result.exists() else []), *launches):
        if layout.ASIDE not in path.parent.name:
            yield path.relative_to(run.root).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def _clean(text: str) -> tuple[bytes, int]:
    """Return a text with its secrets removed, and how many were removed."""
    cleaned, count = redacted_with_count(text)
    return cleaned.encode(), count


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files; anything other than a regular file with a plain name is rejected."""
    for place, entry in enumerate(archive):
        name = PurePosixPath(entry.name)
        is_plain = entry.isfile() and not name.is_absolute() and ".." not in name.parts
        if not is_plain or entry.size > MAX_FILE_BYTES or place > MAX_FILES:
            raise RecordError(f"it contains {entry.name!r}, which is not a file of a run", place=str(path))
        file = archive.extractfile(entry)
        yield name.as_posix(), b"" if file is None else file.read()


def _hashes(content: bytes, path: Path) -> Mapping[str, str]:
    try:
        manifest: Any = parse_json(content)
        if manifest["schema_version"] > MANIFEST_VERSION:
            raise RecordError("it is from a newer version", place=str(path), next_step="Update gpuproof")
        return {str(name): str(value) for name, value in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError("its manifest.json cannot be read", place=str(path)) from error


def _check(contents: Mapping[str, bytes], hashes: Mapping[str, str], path: Path) -> None:
    """Check every file against the manifest.

    Raises:
        RecordError: at least one file does not match; the message lists them.
    """
    faults = {
        "changed": [x for x in contents if x in hashes and _sha256(contents[x]) != hashes[x]],
        "missing": [name for name in hashes if name not in contents],
        "not in the manifest": [name for name in contents if name not in hashes],
    }
    wrong = [f"{what}: {', '.join(names)}" for what, names in faults.items() if names]
    if wrong:
        raise RecordError(
            f"does not match the packed evidence ({'; '.join(wrong)})",
            place=str(path),
            next_step="Request the archive again; nothing was judged",
        )
