"""Stands for torch's elastic agent and its ranks in a pod: says what it was given, and does what ACT says.

ACT is `done`, or `fail:N`: node N ends with status 3 once all have come, by their files in the folder MEET;
the others run on until they are told to end.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    """Write what this node was given into its folder, then act."""
    words = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:] if "=" in word)
    (spec,) = (Path(word) for word in sys.argv if word.endswith("spec.json"))
    rank = words["node-rank"]
    act, _, node = os.environ["ACT"].partition(":")
    if act != "done" and node != rank:  # before anybody can see that it has come
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_last_words(spec.parent / f"last-words-{rank}")))
    told = {"words": words, "environment": dict(os.environ)}
    (spec.parent / f"told-{rank}.json").write_text(json.dumps(told))
    if act == "done":
        return 0
    meet = Path(os.environ["MEET"])
    meet.mkdir(exist_ok=True)
    (meet / rank).touch()
    if node == rank:
        while len(list(meet.iterdir())) < int(words["nnodes"]):
            time.sleep(0.05)
        return 3
    while True:
        time.sleep(60)


def _last_words(path: Path) -> int:
    path.write_text("told to end")
    return 143


if __name__ == "__main__":
    sys.exit(main())
