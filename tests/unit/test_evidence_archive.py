"""The archive of evidence: it replays its verdict, keeps no secret, and refuses what was changed by name."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from gpuproof.base.errors import ExitCode, RecordError
from gpuproof.campaign.conclude import conclude, conclude_otherwise
from gpuproof.store.bundle import MANIFEST, open_bundle, write_bundle
from gpuproof.store.run import RunDirectory
from running import gpuproof
from validation_by_hand import recipe, walk, written

SECRETS = {
    "assigned": ("export HF_TOKEN=hf_aaaaaaaaaaaaaaaaaaaaaaaa", "hf_aaaaaaaaaaaaaaaaaaaaaaaa"),
    "in JSON": ('{"AWS_SECRET_ACCESS_KEY": "abcd/efgh"}', "abcd/efgh"),
    "in an address": ("pulled from https://user:hunter2@example.org/x", "hunter2"),
    "a header": ("Authorization: Bearer abcdefghijklmnop", "abcdefghijklmnop"),
    "a key": ("-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----", "MIIB"),
    "alone": ("it said AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    config = recipe()
    return written(tmp_path, walk(config), config)


def rewritten(path: Path, changes: dict[str, bytes | None]) -> None:
    """Pack an archive anew with files changed, added, or (None) taken out."""
    with tarfile.open(path) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive}
        contents = {name: file.read() for name, file in files.items() if file is not None}
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {**contents, **changes}.items():
            if content is not None:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def test_it_replays_the_verdict(run: RunDirectory, tmp_path: Path) -> None:
    measured = conclude(run).result
    packed = write_bundle(run, tmp_path / "e.tar.gz")
    opened, hashed = open_bundle(tmp_path / "e.tar.gz", tmp_path / "opened")
    assert hashed == packed
    assert conclude_otherwise(opened, {}).result == measured
    assert measured.verdict == "READY"


JOURNAL = "cases/training/0/rank-0.jsonl"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({JOURNAL: b"{}\n"}, f"changed: {JOURNAL}"),
        ({JOURNAL: None}, f"missing: {JOURNAL}"),
        ({"cases/more.json": b"{}"}, "not in the manifest: cases/more.json"),
        ({MANIFEST: None}, "no manifest.json"),
        ({MANIFEST: b"{"}, "manifest.json cannot be read"),
        ({"../outside.json": b"{}"}, "'../outside.json', which is not a file of a run"),
    ],
)
def test_what_was_changed_is_refused_by_name(
    changes: dict[str, bytes | None], said: str, run: RunDirectory, tmp_path: Path
) -> None:
    path = tmp_path / "e.tar.gz"
    write_bundle(run, path)
    rewritten(path, changes)
    with pytest.raises(RecordError) as caught:
        open_bundle(path, tmp_path / "opened")
    assert said in str(caught.value)
    assert not (tmp_path / "opened").exists()
    assert not (tmp_path / "outside.json").exists()


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "e.tar.gz").write_bytes(content)
    with pytest.raises(RecordError, match="not an evidence archive"):
        open_bundle(tmp_path / "e.tar.gz", tmp_path / "opened")


@pytest.mark.parametrize("name", list(SECRETS))
def test_secrets_are_left_out(name: str, run: RunDirectory, tmp_path: Path) -> None:
    text, secret = SECRETS[name]
    (run.root / "cases/training/0/stderr-0.txt").write_text(f"before\n{text}\nafter\n")
    write_bundle(run, tmp_path / "e.tar.gz")
    opened, _ = open_bundle(tmp_path / "e.tar.gz", tmp_path / "opened")
    kept = (opened.root / "cases/training/0/stderr-0.txt").read_text()
    assert secret not in kept
    assert kept.startswith("before\n")
    assert kept.endswith("\nafter\n")
    with tarfile.open(tmp_path / "e.tar.gz") as archive:
        manifest = json.loads((archive.extractfile(MANIFEST) or io.BytesIO()).read())
    assert manifest["redacted"]["cases/training/0/stderr-0.txt"] >= 1


def test_what_is_no_secret_stays(run: RunDirectory, tmp_path: Path) -> None:
    write_bundle(run, tmp_path / "e.tar.gz")
    opened, _ = open_bundle(tmp_path / "e.tar.gz", tmp_path / "opened")
    for name in ("run.json", JOURNAL):
        assert (opened.root / name).read_bytes() == (run.root / name).read_bytes()


def test_somebody_else_judges_it_again_and_is_told_of_a_changed_byte(
    run: RunDirectory, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    measured = conclude(run).result
    write_bundle(run, elsewhere / "e.tar.gz")
    words = ("validate", "--from", "e.tar.gz", "--json")
    again = gpuproof(*words, cwd=elsewhere)
    assert (again.returncode, json.loads(again.stdout)["verdict"]) == (measured.exit_code, "READY")

    journal = bytearray((run.root / JOURNAL).read_bytes())
    journal[journal.index(b'"items":') + len(b'"items":') + 1] ^= 1  # another digit
    rewritten(elsewhere / "e.tar.gz", {JOURNAL: bytes(journal)})
    refused = gpuproof(*words, cwd=elsewhere)
    assert refused.returncode not in (ExitCode.DONE, measured.exit_code)
    assert f"changed: {JOURNAL}" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stdout == ""
