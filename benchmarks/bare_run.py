"""The bare script that `gpuproof run` is compared with: it runs the same steps and prints one number.

Written as a person would write it to get that number once: no records, no checks, no intervals. It imports
nothing from gpuproof. The last line is JSON with the samples per second and the time at which each part ended
on the monotonic clock.
"""

from __future__ import annotations

import argparse
import json
from time import monotonic

NUM_BATCHES = 64

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--warmup", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
options = parser.parse_args()
marks_s = {"start": monotonic()}

import torch  # noqa: E402  # the import is part of what is timed
from torch import nn  # noqa: E402

marks_s["import torch"] = monotonic()
torch.set_num_threads(1)
torch.manual_seed(1337)
layers: list[nn.Module] = []
for fan_in, fan_out in ((50, 256), (256, 128), (128, 64)):
    layers += [nn.Linear(fan_in, fan_out), nn.ReLU(), nn.Dropout(0.2)]
model = nn.Sequential(*layers, nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
inputs = torch.randn(NUM_BATCHES, options.batch, 50)
targets = torch.randn(NUM_BATCHES, options.batch, 3)
marks_s["prepare"] = monotonic()


def train(num_steps: int) -> None:
    """Run steps over the batches, cycling through them."""
    for number in range(num_steps):
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(inputs[number % NUM_BATCHES]), targets[number % NUM_BATCHES])
        loss.backward()
        optimizer.step()


train(options.warmup)
begin_s = monotonic()
train(options.steps)
marks_s["steps"] = monotonic()
samples_per_s = options.steps * options.batch / (marks_s["steps"] - begin_s)
print(json.dumps({"samples_per_s": samples_per_s, "marks_s": marks_s}))
