"""The node side as a single file: `gpuproof-node.pyz`, which any Python can run directly.

It contains the node side's packages and the metadata that registers built-in workloads, plus the code from
the control side that shows and compares recordings, which no launcher uses. Two archives of the same version
are identical byte for byte.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import gpuproof
from gpuproof.processes.scratch import scratch_folder

NODE_PACKAGES = ("base", "processes", "records", "accelerators", "devices", "monitor", "workloads", "worker")
READING_PACKAGES = ("readings", "statistics", "comparison")
READING_FILES = (
    *("__init__.py", "records/doubts.csv"),
    *("hardware/__init__.py", "hardware/events.py", "hardware/events.toml"),
    *("launches/__init__.py", "launches/subjects.py"),
    *("verdict/__init__.py", "verdict/page.py", "verdict/aspects.py", "verdict/rollup.py"),
    *("report/__init__.py", "report/markdown.py", "report/page_parts.py"),
    *("observe/__init__.py", "observe/node_file.py", "observe/recording_page.py"),
)
METADATA = "Metadata-Version: 2.1\nName: gpuproof\nVersion: {}\n"
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The date of every archive member: an archive depends only on its content, not on when it was created."""
SHEBANG = b"#!/usr/bin/env python3\n"
MAIN = """import sys
from gpuproof.observe import node_file
from gpuproof.worker.__main__ import main

words = sys.argv[1:]
if words[:1] in (["-h"], ["--help"]):
    lines = (f"  {name:<18}{what}, with numpy" for name, what in node_file.COMMANDS.items())
    print("Recordings, read on the node:", *lines, sep="\\n", end="\\n\\n")
sys.exit(node_file.main(words) if words and words[0] in node_file.COMMANDS else main())
"""


def build_archive(target: Path) -> Path:
    """Write the archive to `target` via a temporary file; return `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.part")
    with aside.open("wb") as file:
        file.write(SHEBANG)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(_members().items()):
                archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    aside.chmod(0o755)
    aside.replace(target)
    return target


def _members() -> dict[str, str]:
    package = Path(gpuproof.__file__).parent
    sources = [path for name in NODE_PACKAGES + READING_PACKAGES for path in (package / name).rglob("*.py")]
    sources += [package / "worker" / "host" / "variables.txt"]
    sources += (package / "records").glob("*.csv")
    sources += [package / name for name in READING_FILES]
    members = {
        f"gpuproof/{path.relative_to(package).as_posix()}": path.read_text("utf-8") for path in sources
    }
    folder = f"gpuproof-{gpuproof.__version__}.dist-info"
    members[f"{folder}/METADATA"] = METADATA.format(gpuproof.__version__)
    members[f"{folder}/entry_points.txt"] = distribution("gpuproof").read_text("entry_points.txt") or ""
    members["__main__.py"] = MAIN
    return members


@contextmanager
def built_node_side() -> Iterator[Path]:
    """Yield the node side as one file, which exists only while it is needed."""
    with scratch_folder() as folder:
        yield build_archive(folder / "gpuproof-node.pyz")


if __name__ == "__main__":
    sys.stdout.write(f"{build_archive(Path(sys.argv[1]))}\n")
