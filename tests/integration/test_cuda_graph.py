"""A captured step without CUDA: the order of things, what is copied where, and every refusal.

What a graph does on a device is docs/lab-log.md; here a stand-in runs the step's Python.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gpuproof.accelerators.base import OutOfMemory
from gpuproof.accelerators.choose import PROCESSOR, find_accelerator
from gpuproof.base.errors import EnvironmentUnfitError, UsageError
from gpuproof.records.case import TrainingWork
from gpuproof.records.what_ran import Effective
from gpuproof.records.work.data import DataUsed
from gpuproof.worker.data.sources import SamplePool
from gpuproof.worker.engine.host_clock import HostClock
from gpuproof.worker.rank.recorder import Recorder
from gpuproof.worker.rank.session import compile_model
from gpuproof.worker.rank.watchdog import Heartbeat
from gpuproof.worker.step.cuda_graph import (
    STEPS_BEFORE_CAPTURE,
    StaticBatches,
    Step,
    capture_step,
    is_captured,
)
from gpuproof.worker.step.precision import PrecisionPolicy
from gpuproof.worker.step.training import TrainingStep
from records_by_hand import case

DRAWN = DataUsed(
    loading="device",
    split=None,
    source=None,
    num_samples=None,
    sha256=None,
    sha256_of=None,
    batches_ahead=0,
)
SEEN = Effective(rank=0, work=(), uncounted=(), missing="nothing looked")


def pool() -> SamplePool:
    """Four batches of two samples: 0 and 1, 2 and 3, 4 and 5, 6 and 7; targets a hundred more."""
    inputs = torch.arange(8.0).unsqueeze(1)
    return SamplePool(inputs, inputs + 100, 2, DRAWN)


class Model:
    """A step that writes down what it read, and from where."""

    def __init__(self, batches: StaticBatches, *, takes: int = 1) -> None:
        self.module = nn.Identity()
        self.last_loss: torch.Tensor | None = torch.zeros(())
        self.outputs: object = None
        self.read: list[list[float]] = []
        self.places: set[int] = set()
        self._batches = batches
        self._takes = takes

    def __call__(self) -> None:
        for _ in range(self._takes):
            inputs, targets = self._batches.next_batch()
            assert torch.equal(targets, inputs + 100)
            self.read.append(inputs.flatten().tolist())
            self.places.add(inputs.data_ptr())


class StandIn:
    """Notes the order of events, and replays by running the step."""

    def __init__(self, *, error: RuntimeError | None = None) -> None:
        self.events: list[str] = []
        self._error = error

    def run_aside(self, run: Step) -> None:
        self.events.append("side stream")
        run()
        self.events.append("back")

    def capture_graph(self, run: Step) -> Step:
        self.events.append("record")
        if self._error is not None:
            raise self._error
        return run


def capture(stand_in: StandIn, *, takes: int = 1) -> tuple[Step, Model]:
    batches = StaticBatches(pool(), count=takes)
    model = Model(batches, takes=takes)

    def observe(step: Step) -> Effective:
        stand_in.events.append("look")
        step()
        return SEEN

    captured = capture_step(model, batches, capture=stand_in, observe=observe)
    assert captured.effective is SEEN
    assert captured.eager is model
    return captured, model


def test_steps_run_aside_the_last_is_looked_at_and_then_the_graph_is_recorded() -> None:
    stand_in = StandIn()
    _, model = capture(stand_in)
    assert stand_in.events == ["side stream", "look", "back", "record"]
    assert len(model.read) == STEPS_BEFORE_CAPTURE


def test_each_replay_reads_the_next_samples_from_the_same_place() -> None:
    step, model = capture(StandIn())
    model.read.clear()
    step()
    step()
    # The buffer took batch 0 at first, the steps aside 1 to 3; the pool goes round.
    assert model.read == [[0.0, 1.0], [2.0, 3.0]]
    assert len(model.places) == 1


def test_micro_batches_have_a_buffer_each() -> None:
    step, model = capture(StandIn(), takes=2)
    model.read.clear()
    step()
    assert len(model.read) == 2
    assert model.read[0] != model.read[1]
    assert len(model.places) == 2


def test_a_step_that_cannot_be_captured_is_an_error_in_words() -> None:
    with pytest.raises(UsageError, match="cannot be captured: operation not permitted when stream is"):
        capture(StandIn(error=RuntimeError("operation not permitted when stream is capturing\nmore")))


def test_a_lack_of_memory_in_a_capture_stays_one() -> None:
    with pytest.raises(OutOfMemory):
        capture(StandIn(error=OutOfMemory("out of memory")))


@pytest.mark.parametrize(
    ("device_type", "world_size", "reason"),
    [
        ("cpu", 1, "this run is on the CPU"),
        ("mps", 1, "does not capture graphs on Apple MPS devices"),
        ("cuda", 2, "the gradient average of 2 ranks"),
    ],
)
def test_where_nothing_can_be_captured(device_type: str, world_size: int, reason: str) -> None:
    accelerator = find_accelerator(device_type)
    with pytest.raises(EnvironmentUnfitError, match=reason):
        is_captured(work(cuda_graphs=True), accelerator, world_size=world_size)
    assert not is_captured(work(cuda_graphs="auto"), accelerator, world_size=world_size)


def test_one_rank_on_cuda_can_be_captured() -> None:
    cuda = find_accelerator("cuda")
    assert is_captured(work(cuda_graphs=True), cuda, world_size=1)
    assert is_captured(work(cuda_graphs="auto"), cuda, world_size=1)
    assert not is_captured(work(cuda_graphs=False), cuda, world_size=1)
    assert not is_captured(work(cuda_graphs="auto", precision="amp"), cuda, world_size=1)


def work(**chosen: Any) -> TrainingWork:
    """Return a training case's work with these options of `training`."""
    work = case().work
    assert isinstance(work, TrainingWork)
    return replace(work, training=replace(work.training, **chosen))


def test_a_kept_loss_holds_no_graph_of_its_step() -> None:
    """It would keep alive the nodes of the gradients, which belong to the stream of the first step."""
    torch.manual_seed(0)
    step = TrainingStep(
        case().work,  # type: ignore[arg-type]  # a training case unless it is told otherwise
        module=nn.Linear(1, 1),
        loss=nn.functional.mse_loss,
        pool=pool(),
        precision=PrecisionPolicy(name="fp32", device_type="cpu"),
    )
    step()
    assert step.last_loss is not None
    assert step.last_loss.grad_fn is None
    assert float(step.last_loss) > 0


@pytest.mark.parametrize(
    ("captured", "events"), [(True, ["side stream", "step", "step", "back"]), (False, ["step"] * 2)]
)
def test_a_model_that_is_to_be_captured_is_compiled_on_the_side_stream(
    captured: bool, events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(type(PROCESSOR), "run_aside", lambda _self, run: stand_in.run_aside(run))
    prepared: Any = SimpleNamespace(
        static=StaticBatches(pool(), count=1) if captured else None,
        step=lambda: stand_in.events.append("step"),
        clock=HostClock(),
        device=torch.device("cpu"),
    )
    recorder = Recorder(tmp_path / "rank-0.jsonl", rank=0, heartbeat=Heartbeat())
    compile_model(prepared, recorder)
    recorder.close()
    assert stand_in.events == events
