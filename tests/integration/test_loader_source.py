"""The loader's batches, from real DataLoaders: whose they are, how they look, how long steps waited."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gpuproof.base.errors import EnvironmentUnfitError
from gpuproof.datasets.catalogue import prepare, prepared_file
from gpuproof.records.case import Case
from gpuproof.records.dataset_files import write_tensor_file
from gpuproof.records.work.data import DataUsed
from gpuproof.worker.data.batch_source import BatchSource
from gpuproof.worker.data.datasets import Sample
from gpuproof.worker.data.loader import LoaderSource, ShardedBatches, Share, effective_settings
from gpuproof.worker.data.sources import RankData, open_held_out, open_source
from gpuproof.worker.engine.clocks import EventClock
from gpuproof.worker.engine.host_clock import HostClock
from gpuproof.workloads.info.base import InputShape
from records_by_hand import case, with_work
from waiting import eventually

CPU = torch.device("cpu")
Settings = dict[str, object]
INSIDE: Settings = {
    **{"num_workers": 0, "pin_memory": False},
    **{"prefetch_factor": None, "persistent_workers": False},
}
TWO: Settings = {"num_workers": 2, "pin_memory": True, "prefetch_factor": 2, "persistent_workers": True}
ANEW: Settings = {**TWO, "persistent_workers": False}
NUM_IMAGES = 24
USED = DataUsed(
    loading="loader", split=None, source=None, num_samples=None, sha256=None, sha256_of=None, batches_ahead=0
)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process of a loader outlives its source."""
    yield
    eventually("the loader's end", lambda: active_children() == [])


def numbered_images(tmp_path: Path, *, edge: int = 4) -> Case:
    """A tensor file whose n-th image is all n, with label n."""
    pixels = np.repeat(np.arange(NUM_IMAGES, dtype=np.uint8), edge * edge)
    (tmp_path / "data").mkdir(exist_ok=True)
    write_tensor_file(
        tmp_path / "data/digits.tensors",
        name="numbered",
        shape=(NUM_IMAGES, 1, edge, edge),
        num_classes=NUM_IMAGES,
        images=pixels.tobytes(),
        labels=bytes(range(NUM_IMAGES)),
    )
    return case(data={"batch_size": 2})


def opened(
    asked: Case, shape: InputShape, run_folder: Path, *, rank: int = 0, world_size: int = 1
) -> BatchSource:
    return open_source(asked.model_work, shape, place_of(run_folder, rank=rank, world_size=world_size))


def place_of(run_folder: Path, *, rank: int = 0, world_size: int = 1) -> RankData:
    return RankData(shard=rank, num_shards=world_size, run_folder=run_folder, device=CPU, channels_last=False)


def with_loader(asked: Case, settings: dict[str, Any]) -> Case:
    return with_work(asked, data=replace(asked.model_work.data, loading="loader", **settings))


def images(edge: int = 4, channels: int = 1) -> InputShape:
    return InputShape(kind="image", shape=(channels, edge, edge), num_targets=NUM_IMAGES)


@pytest.mark.parametrize("settings", [INSIDE, TWO, ANEW], ids=["inside", "persistent", "anew"])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_in_every_epoch_ranks_share_the_whole_set_out(
    settings: dict[str, Any], world_size: int, tmp_path: Path
) -> None:
    asked = with_loader(numbered_images(tmp_path), settings)
    sources = [opened(asked, images(), tmp_path, rank=r, world_size=world_size) for r in range(world_size)]
    batches = NUM_IMAGES // (2 * world_size)
    orders = []
    for _epoch in range(3):
        shards = []
        for source in sources:
            assert source.num_samples == 2 * batches
            drawn = [source.next_batch() for _ in range(batches)]
            assert all(inputs.shape == (2, 1, 4, 4) for inputs, _ in drawn)
            shards.append([int(label) for _, targets in drawn for label in targets])
            for inputs, targets in drawn:  # every label comes with its own image
                assert torch.allclose((inputs[:, 0, 0, 0] + 1) * 127.5, targets.float())
        assert sorted(label for shard in shards for label in shard) == list(range(NUM_IMAGES))
        orders.append(shards)
    assert orders[0] != orders[1] != orders[2]
    for source in sources:
        source.close()


@pytest.mark.parametrize("world_size", [1, 2])
def test_no_step_takes_what_is_held_out_and_every_seed_holds_out_the_same(
    world_size: int, tmp_path: Path
) -> None:
    asked = numbered_images(tmp_path)
    found: list[set[int]] = []
    for seed in (0, 7):
        work = replace(asked.model_work, data=replace(asked.model_work.data, held_out=0.25))
        work = replace(work, training=replace(work.training, seed=seed))
        taken: list[int] = []
        held: list[int] = []
        for rank in range(world_size):
            place = place_of(tmp_path, rank=rank, world_size=world_size)
            source, held_out = open_source(work, images(), place), open_held_out(work, images(), place)
            assert held_out is not None
            for pool, seen in ((source, taken), (held_out, held)):
                for _ in range(math.ceil(pool.num_samples / 2)):
                    inputs, targets = pool.next_batch()
                    seen.extend(targets.tolist())
                    assert torch.allclose((inputs[:, 0, 0, 0] + 1) * 127.5, targets.float())
            assert source.used.num_samples == 18
        assert (len(held), len(set(held))) == (6, 6)
        assert len(set(taken)) == {1: 18, 2: 16}[world_size], "full batches of all ranks"
        assert not set(taken) & set(held)
        found.append(set(held))
    assert found[0] == found[1]
    assert open_held_out(asked.model_work, images(), place_of(tmp_path)) is None


def test_what_is_left_of_an_epoch_is_dropped_for_all_ranks_alike() -> None:
    shards = [ShardedBatches(11, Share(batch_size=2, seed=5, rank=r, world_size=2)) for r in (0, 1)]
    drawn = [[number for batch in shard for number in batch] for shard in shards]
    assert [len(shard) for shard in drawn] == [4, 4]
    assert len(set(drawn[0]) | set(drawn[1])) == 8


@pytest.mark.parametrize("loading", ["device", "loader"])
def test_a_set_smaller_than_one_batch_a_rank_is_refused(loading: str, tmp_path: Path) -> None:
    asked = numbered_images(tmp_path)
    changes: dict[str, Any] = {"loading": loading, "batch_size": 13, **INSIDE}
    data = replace(asked.model_work.data, **changes)
    with pytest.raises(
        EnvironmentUnfitError, match="24 samples are not enough for a batch of 13 on each of 2 ranks"
    ):
        opened(with_work(asked, data=data), images(), tmp_path, world_size=2)


def test_loader_and_pool_give_the_model_the_same_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    asked = numbered_images(tmp_path, edge=4)
    write_tensor_file(
        tmp_path / "data/digits.tensors",
        name="random",
        shape=(NUM_IMAGES, 1, 4, 4),
        num_classes=NUM_IMAGES,
        images=rng.integers(0, 256, NUM_IMAGES * 16, dtype=np.uint8).tobytes(),
        labels=bytes(range(NUM_IMAGES)),
    )
    shape = images(edge=9, channels=3)
    found = []
    for source in (opened(asked, shape, tmp_path), opened(with_loader(asked, INSIDE), shape, tmp_path)):
        drawn = [source.next_batch() for _ in range(NUM_IMAGES // 2)]
        by_label = {int(label): image for pair in drawn for image, label in zip(*pair, strict=True)}
        found.append(torch.stack([by_label[label] for label in range(NUM_IMAGES)]))
    assert found[0].shape == (NUM_IMAGES, 3, 9, 9)
    assert (found[0] - found[1]).abs().max() <= 0.51 / 127.5  # the loader hands over whole bytes
    assert found[0].unique().numel() > 100


@pytest.mark.parametrize("loading", ["device", "loader"])
def test_images_of_a_folder_come_with_their_classes(loading: str, tmp_path: Path) -> None:
    colours = {"blue": (0, 0, 255), "red": (255, 0, 0)}
    for name, colour in colours.items():
        (tmp_path / "images/train" / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (30, 20), colour).save(tmp_path / "images/train" / name / f"{i}.png")
    file = prepared_file("ImageFolder", loading=loading, split="train", image_size=8)  # type: ignore[arg-type]
    data = {"name": "ImageFolder", "path": str(tmp_path / "images"), "file": file, "image_size": 8}
    asked = case(data={**data, "loading": loading, "batch_size": 4}, loader=INSIDE)
    prepare(asked, tmp_path, world_size=1, say=print)
    source = opened(asked, images(edge=8, channels=3), tmp_path)
    assert (source.used.num_samples, source.used.loading, source.used.split) == (8, loading, "train")
    for _ in range(2):
        inputs, targets = source.next_batch()
        for image, label in zip(inputs, targets, strict=True):
            expected = torch.tensor(list(colours.values())[int(label)]) / 127.5 - 1
            assert torch.allclose(image, expected[:, None, None].expand(3, 8, 8))


@pytest.mark.parametrize("loading", ["device", "loader"])
@pytest.mark.parametrize(("token_type", "dtype"), [("uint16", "<u2"), ("uint32", "<u4")])
def test_tokens_are_cut_into_sequences_and_shared_out(
    loading: str, token_type: str, dtype: str, tmp_path: Path
) -> None:
    ids = np.arange(43) * (1 if token_type == "uint16" else 2_000)  # eight sequences of five, and a rest
    ids.astype(dtype).tofile(tmp_path / "ids.bin")
    file = prepared_file("tokens", loading="device", split="train", image_size=None)
    model = {"name": "decoder", "num_classes": None, "options": {"vocab_size": 100_000}}
    data = {"name": "tokens", "path": str(tmp_path / "ids.bin"), "file": file, "token_type": token_type}
    asked = case(model=model, data={**data, "loading": loading, "batch_size": 2}, loader=INSIDE)
    prepare(asked, tmp_path, world_size=2, say=print)
    shape = InputShape(kind="tokens", shape=(4,), num_targets=100_000)
    sources = [opened(asked, shape, tmp_path, rank=rank, world_size=2) for rank in (0, 1)]
    first = []
    for source in sources:
        assert source.used.num_samples == 8
        for _ in range(2):
            inputs, targets = source.next_batch()
            assert inputs.dtype == targets.dtype == torch.int64
            assert torch.equal(inputs[:, 1:], targets[:, :-1])
            first += [int(token) for token in inputs[:, 0]]
    assert sorted(first) == [int(ids[5 * i]) for i in range(8)]


@pytest.mark.parametrize("kind", ["image", "features", "tokens"])
def test_drawn_samples_are_those_of_their_numbers(kind: str, tmp_path: Path) -> None:
    shapes = {
        "image": images(channels=3),
        "features": InputShape(kind="features", shape=(6,), num_targets=2),
        "tokens": InputShape(kind="tokens", shape=(6,), num_targets=9),
    }
    data = {"name": "synthetic", "file": None, "samples_per_epoch": 8, "batch_size": 4}
    asked = case(data={**data, "loading": "loader"}, loader=INSIDE)
    first, again = (opened(asked, shapes[kind], tmp_path).next_batch() for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert first[0].shape == (4, *shapes[kind].shape)
    assert first[0].flatten(1).unique(dim=0).shape[0] == 4


class Slow:
    """Eight samples, each of which takes a fiftieth of a second."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Sample:
        sleep(0.02)
        return torch.zeros(2), number


def slow_source(clock: HostClock | EventClock, samples: object = None) -> LoaderSource:
    return LoaderSource(
        samples or Slow(),  # type: ignore[arg-type]
        ShardedBatches(8, Share(batch_size=2, seed=0, rank=0, world_size=1)),
        settings=effective_settings(INSIDE, can_pin=False),
        device=CPU,
        clock=clock,
        finish=lambda inputs: inputs,
        used=USED,
    )


def test_the_wait_is_counted_once_and_a_pool_has_none(tmp_path: Path) -> None:
    source = slow_source(HostClock())
    for _ in range(3):
        source.next_batch()
    assert source.take_wait_s() >= 3 * 2 * 0.02
    assert source.take_wait_s() == 0.0
    pool = opened(numbered_images(tmp_path), images(), tmp_path)
    pool.next_batch()
    assert pool.take_wait_s() is None


class Quick:
    """Eight samples at once."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> Sample:
        return torch.zeros(2), number


class Event:
    """A device's event on which 2 ms pass between any two records."""

    now_ms = 0.0

    def __init__(self) -> None:
        self.at_ms = 0.0

    def record(self) -> None:
        Event.now_ms += 2.0
        self.at_ms = Event.now_ms

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """It is done."""

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


def test_more_batches_between_two_looks_than_the_ring_of_events_holds() -> None:
    source = slow_source(EventClock(Event, lambda: None), Quick())
    for _ in range(2_500):
        source.next_batch()
    assert source.take_wait_s() == pytest.approx(2_500 * 0.002)


def test_settings_that_torch_refuses_or_that_do_nothing_are_left_out() -> None:
    inside = effective_settings({**TWO, "num_workers": 0}, can_pin=True)
    assert (inside.prefetch_factor, inside.persistent_workers, inside.batches_ahead) == (None, False, 0)
    assert inside.pin_memory
    two = effective_settings(TWO, can_pin=False)
    assert (two.pin_memory, two.persistent_workers, two.batches_ahead) == (False, True, 4)
    assert effective_settings({**TWO, "prefetch_factor": None}, can_pin=False).batches_ahead == 4


def test_what_was_prepared_and_is_not_there_is_named_and_nothing_takes_its_place(tmp_path: Path) -> None:
    for loading in ("device", "loader"):
        asked = case(data={"loading": loading}, loader=INSIDE)
        with pytest.raises(EnvironmentUnfitError, match=r"expected .*digits\.tensors"):
            opened(asked, images(), tmp_path)


@pytest.mark.parametrize("loading", ["device", "loader"])
def test_what_lies_elsewhere_than_where_the_run_was_begun_is_named(loading: str, tmp_path: Path) -> None:
    ids = tmp_path / "ids.bin"
    np.arange(43).astype("<u2").tofile(ids)
    file = prepared_file("tokens", loading="device", split="train", image_size=None)
    model = {"name": "decoder", "num_classes": None, "options": {"vocab_size": 100}}
    data = {"name": "tokens", "path": str(ids), "file": file, "token_type": "uint16"}
    asked = case(model=model, data={**data, "loading": loading, "batch_size": 2}, loader=INSIDE)
    prepare(asked, tmp_path, world_size=1, say=print)
    ids.rename(tmp_path / "elsewhere.bin")  # as on a host that was sent the listing alone
    shape = InputShape(kind="tokens", shape=(4,), num_targets=100)
    with pytest.raises(EnvironmentUnfitError, match=r"which does not exist on this host: .*ids\.bin"):
        opened(asked, shape, tmp_path)
