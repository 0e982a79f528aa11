"""How the node side starts on a host that has only Python: one command, then the bytes it reads.

The command's program reads the archive from standard input, verifies its checksum, stores it in a new
directory (mode 0700) and becomes the agent. It does so in the same interpreter, because starting a second one
would take longer than everything else. One channel therefore carries everything, and a connection that breaks
at any point leaves nothing behind: there is no directory until the archive is complete, and from then on
there is a lease.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from functools import cache

from gpuproof.records.frames import GREETING

PREFIX = "gpuproof-"
ARCHIVE = "gpuproof-node.pyz"

# Must be readable by any version of Python, so that a version that is too old can still report this.
_PROGRAM = f"""
import hashlib, json, os, shutil, sys, tempfile
def fail(cause):
    os.write(1, {GREETING!r} + json.dumps(dict(say="failed", about="boot", cause=cause)).encode() + b"\\n")
    sys.exit(1)
if sys.version_info < (3, 10):
    fail("Python %s is too old: 3.10 or newer is needed" % sys.version.split()[0])
size, digest, parent, lease = int(sys.argv[1]), sys.argv[2], sys.argv[3] or None, sys.argv[4]
content = bytearray()
while len(content) < size:
    piece = os.read(0, min(65536, size - len(content)))
    if not piece:
        sys.exit(1)
    content += piece
if hashlib.sha256(content).hexdigest() != digest:
    fail("the node side arrived damaged")
folder = None
try:
    folder = tempfile.mkdtemp(prefix="{PREFIX}", dir=parent)
    path = os.path.join(folder, "{ARCHIVE}")
    with open(path, "wb") as file:
        file.write(content)
except OSError as error:
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    fail("%s: %s" % (error.strerror, folder or parent or tempfile.gettempdir()))
sys.argv = [path]
sys.path.insert(0, path)
from gpuproof.worker.launched.remote_agent import obey
sys.exit(obey(folder, float(lease)))
"""


def boot_command(python: str, archive: bytes, *, directory: str | None, lease_s: float) -> str:
    """Return the command line, quoted for any shell; the `archive` is sent after it.

    The program is a single line with escapes, since not every login shell accepts a newline within quotes.
    """
    program = f"exec({json.dumps(_PROGRAM)})"
    # Isolated mode without site: imports neither a json.py from the user's home nor the user's packages.
    words = [python, "-I", "-S", "-c", program, str(len(archive)), _checksum(archive)]
    return shlex.join([*words, directory or "", f"{lease_s:g}"])


@cache
def _checksum(archive: bytes) -> str:
    """Return the checksum of an archive; it is the same for all hosts."""
    return hashlib.sha256(archive).hexdigest()


def removal_command(directory: str) -> str | None:
    """Return the command that removes an agent's directory; None if the path is not such a directory."""
    name = directory.rpartition("/")[2]
    is_ours = directory.startswith("/") and name.startswith(PREFIX) and len(name) > len(PREFIX)
    return shlex.join(["rm", "-rf", "--", directory]) if is_ours else None
