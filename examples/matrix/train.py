"""A program to try `gpuproof matrix` with: it trains a small network to separate two rings of points.

The program knows nothing about gpuproof: its settings are arguments, and its results go to a JSON file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def rings(number: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw points from two slightly overlapping rings, with the ring of each point."""
    labels = torch.randint(2, (number,), generator=generator)
    angles = torch.rand(number, generator=generator) * 2 * torch.pi
    radii = 1.0 + labels + 0.25 * torch.randn(number, generator=generator)
    return torch.stack((radii * angles.cos(), radii * angles.sin()), dim=1), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, required=True)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator().manual_seed(options.seed)
    train, test = rings(4096, generator), rings(2048, generator)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, options.width), torch.nn.ReLU(), torch.nn.Linear(options.width, 2)
    ).to(device)
    optimizer = OPTIMIZERS[options.optimizer](model.parameters(), lr=0.01)
    rows = []
    for epoch in range(options.epochs):
        for points, labels in zip(train[0].split(64), train[1].split(64), strict=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(points.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = (model(test[0].to(device)).argmax(1).cpu() == test[1]).float().mean().item()
        rows.append({"epoch": epoch + 1, "loss": loss.item(), "test_accuracy": right})
        print(f"epoch {epoch + 1}: {right:.1%}")
    (options.out / "training_metrics.json").write_text(json.dumps({"epochs": rows}))


if __name__ == "__main__":
    main()
