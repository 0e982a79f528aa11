"""The bare loop of `peers.py`: timm's resnet18, forward only, timed as a person would time it.

Prints samples per second.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import timm
import torch

parser = argparse.ArgumentParser(description=__doc__)
for name in ("batch", "warmup", "steps", "threads", "image"):
    parser.add_argument(f"--{name}", type=int, required=True)
options = parser.parse_args()
torch.set_num_threads(options.threads)
torch.manual_seed(1337)
model = timm.create_model("resnet18", num_classes=1000).eval()
images = torch.randn(options.batch, 3, options.image, options.image)
with torch.inference_mode():
    for _ in range(options.warmup):
        model(images)
    begin_s = perf_counter()
    for _ in range(options.steps):
        model(images)
    end_s = perf_counter()
print(options.steps * options.batch / (end_s - begin_s))
