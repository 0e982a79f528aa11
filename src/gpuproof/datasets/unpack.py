"""Unpack a tar archive that came over a network: plain files only, inside the folder that was expected.

Nothing is trusted but the bytes of files: links, devices, absolute names and `..` are refused before
anything is written; owners, modes and times are not taken over.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from gpuproof.errors import EnvironmentUnfitError


def unpack(archive: Path, target: Path, *, folder: str) -> None:
    """Unpack the archive's `folder` into `target`, aside and then renamed, so that it is whole or absent.

    Raises:
        EnvironmentUnfitError: it is no tar archive, or holds what no data set needs.
        OSError: the disk is full, or cannot be written.
    """
    aside = Path(tempfile.mkdtemp(prefix=f".{folder}.", dir=target))
    try:
        with tarfile.open(archive, "r:*") as tar:
            members = [_checked(member, folder) for member in tar]
            for member in members:
                if member.isfile():
                    _write(tar, member, aside / member.name)
        (aside / folder).rename(target / folder)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise _refusal(f"it is no tar archive: {error}") from error
    except FileNotFoundError as error:
        raise _refusal(f"it holds no folder {folder}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _checked(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    parts = PurePosixPath(member.name).parts
    if not (member.isfile() or member.isdir()):
        raise _refusal(f"{member.name!r} in it is neither a file nor a folder")
    if member.name.startswith("/") or ".." in parts or not parts or parts[0] != folder:
        raise _refusal(f"{member.name!r} in it lies outside of {folder}")
    return member


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)


def _refusal(cause: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        f"the archive is not unpacked: {cause}",
        place="data.download",
        next_step="Check where it came from (data.download_url), or unpack it yourself",
    )
