"""Create the pictures of docs/guides/monitor.md from fake devices.

    python scripts/monitor_pictures.py

Runs `gpuproof monitor exec` on two healthy fake devices, runs it again on two fake devices of which the
second is too hot, and shows the live view of four fake devices, the last of which is lost. Nothing here comes
from a GPU, and each picture says so.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
WORK = """
for epoch in 1 2; do
  echo "{\\"phase\\": \\"train\\", \\"epoch\\": $epoch}" >&$GPUPROOF_MARKS_FD; sleep 12
  echo '{"phase": "evaluate"}' >&$GPUPROOF_MARKS_FD; sleep 3
done
"""
LIVE_S = 12.0


def main() -> None:
    """Create the plot, the comparison and the picture of the live view."""
    with tempfile.TemporaryDirectory() as folder:
        for devices, name in (("2", "fake_devices"), ("2:thermal", "fake_devices_hot")):
            _monitor(
                "exec", "--config-name", name, "--generate-graphs", "--", "sh", "-c", WORK,
                devices=devices, folder=folder,
            )  # fmt: skip
        results = Path(folder) / "results"
        (plot,) = results.glob("gpu_stats_fake_devices_hot_*_plot.png")
        (IMAGES / "plot.png").write_bytes(plot.read_bytes())
        recordings = [str(next(results.glob(f"gpu_stats_{name}_2*.jsonl"))) for name in
                      ("fake_devices", "fake_devices_hot")]  # fmt: skip
        _monitor("compare", "--plot", str(IMAGES / "comparison.png"), *recordings, devices="2", folder=folder)
    os.environ["GPUPROOF_FAKE_DEVICES"] = "4:lost"
    asyncio.run(_live_view())


def _monitor(*arguments: str, devices: str, folder: str) -> None:
    environment = {**os.environ, "GPUPROOF_FAKE_DEVICES": devices}
    command = [sys.executable, "-m", "gpuproof", "monitor", *arguments]
    subprocess.run(command, check=True, cwd=folder, env=environment)


async def _live_view() -> None:
    from gpuproof.observe import stream
    from gpuproof.observe.live import LiveView

    command = stream.sampler_command(interval_s=0.2, devices=None, processes="details")
    view = LiveView({"": stream.sampled(command)})
    view.title = "gpuproof monitor live, on four fake devices"
    async with view.run_test(size=(110, 24)) as pilot:
        await pilot.pause(LIVE_S)
        picture = view.export_screenshot(title=view.title)
    (IMAGES / "live.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
