"""An archive of evidence: the files that a verdict rests on, a SHA-256 of each, secrets left out.

Somebody else opens it, each file is held against its hash, and the run is judged again from it. A file that
was changed, added or taken out is refused by name. The manifest itself has a hash, too, which the sender
tells by another way: whoever can change the archive can change the manifest.
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
"""Of the files of a launch that are evidence; samples, traces and pictures are not."""
MAX_FILE_BYTES = 2**30
MAX_FILES = 1_000_000


def write_bundle(run: RunDirectory, path: Path) -> str:
    """Write the archive; return the SHA-256 of its manifest.

    Raises:
        EnvironmentUnfitError: it cannot be written.
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
        RecordError: it is none, or a file in it is not what the manifest says.
    """
    try:
        with tarfile.open(path, "r:gz") as archive:
            contents = dict(_read(archive, path))
    except (tarfile.TarError, OSError, EOFError) as error:
        raise RecordError(f"no archive of evidence: {error}", place=str(path)) from error
    manifest = contents.pop(MANIFEST, None)
    if manifest is None:
        raise RecordError("no archive of evidence: it holds no manifest.json", place=str(path))
    _check(contents, _hashes(manifest, path), path)
    for name, content in contents.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return RunDirectory.open(folder), _sha256(manifest)


def _evidence(run: RunDirectory) -> Iterator[tuple[str, str]]:
    """Yield what the verdict is made from: what was asked, and what each launch left."""
    result = run.root / layout.RESULT
    launches = sorted(path for path in (run.root / layout.CASES).glob("*/*/*") if path.suffix in SUFFIXES)
    for path in (run.root / layout.DESCRIPTION, *([result] if result.exists() else []), *launches):
        if layout.ASIDE not in path.parent.name:
            yield path.relative_to(run.root).as_posix(), path.read_text(encoding="utf-8", errors="replace")


def _clean(text: str) -> tuple[bytes, int]:
    """Return a text without secrets, and how many were taken out."""
    cleaned, count = redacted_with_count(text)
    return cleaned.encode(), count


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files; nothing but plain files of plain names is taken."""
    for place, entry in enumerate(archive):
        name = PurePosixPath(entry.name)
        is_plain = entry.isfile() and not name.is_absolute() and ".." not in name.parts
        if not is_plain or entry.size > MAX_FILE_BYTES or place > MAX_FILES:
            raise RecordError(f"it holds {entry.name!r}, which is no file of a run", place=str(path))
        file = archive.extractfile(entry)
        yield name.as_posix(), b"" if file is None else file.read()


def _hashes(content: bytes, path: Path) -> Mapping[str, str]:
    try:
        manifest: Any = parse_json(content)
        if manifest["schema_version"] > MANIFEST_VERSION:
            raise RecordError(
                "the archive is of a newer version", place=str(path), next_step="Update gpuproof"
            )
        return {str(name): str(value) for name, value in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError("its manifest.json cannot be read", place=str(path)) from error


def _check(contents: Mapping[str, bytes], hashes: Mapping[str, str], path: Path) -> None:
    """Hold every file against the manifest.

    Raises:
        RecordError: naming those that differ.
    """
    faults = {
        "changed": [x for x in contents if x in hashes and _sha256(contents[x]) != hashes[x]],
        "missing": [name for name in hashes if name not in contents],
        "not in the manifest": [name for name in contents if name not in hashes],
    }
    wrong = [f"{what}: {', '.join(names)}" for what, names in faults.items() if names]
    if wrong:
        raise RecordError(
            f"not the evidence that was packed ({'; '.join(wrong)})",
            place=str(path),
            next_step="Ask for the archive again; nothing was judged",
        )
