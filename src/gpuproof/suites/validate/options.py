"""The block `validate` of a recipe: which stages, how long, against which rules, and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import tomllib

from gpuproof.base.files import packaged_text
from gpuproof.config.models import RunConfig
from gpuproof.hardware.skus import find_sku
from gpuproof.records.codec import from_json
from gpuproof.records.work.device_sizes import AUTO, Auto
from gpuproof.records.work.options import Bytes
from gpuproof.records.work.parallel import ParallelStrategy
from gpuproof.records.work.probe import ProbeName
from gpuproof.records.work.training import Precision
from gpuproof.verdict.aspects import RequiredAspect

NAME = "validate"
StageName = Literal[
    "links",
    "pattern",
    "fingerprint",
    "gemm",
    "memory",
    "host_memory",
    "overlap",
    "collective",
    "switched_off",
    "nccl_tests",
    "nccl_ras",
    "storage",
    "training",
    "soak",
    "fingerprint_hot",
]
STAGE_NAMES: tuple[StageName, ...] = get_args(StageName)
"""In the order in which they are measured; the last follows a soak by itself."""
USUAL_STAGES: tuple[StageName, ...] = tuple(
    name
    for name in STAGE_NAMES
    if name not in ("host_memory", "switched_off", "nccl_ras", "soak", "fingerprint_hot")
)
LARGEST_MESSAGE: Mapping[bool, str] = {True: "1G", False: "16M"}
USUAL_PRECISION: Mapping[bool, Precision] = {True: "bf16", False: "fp32"}
"""On GPUs, and elsewhere."""
HARDWARE = tuple(
    from_json(RequiredAspect, row, place="hardware.toml")
    for row in tomllib.loads(packaged_text("suites/validate/hardware.toml"))["aspects"]
)
"""What READY needs where the recipe lists nothing else: all that the hardware has."""


def rows_of_stage(stage: str) -> tuple[RequiredAspect, ...]:
    """Return what READY needs of a single stage: its own rows, and the state of what it ran on."""
    rates = {row.aspect for row in HARDWARE if row.labels.get("stage") == stage} - {"right results"}
    return tuple(
        row for row in HARDWARE if row.aspect in ("state", *rates) or row.labels.get("stage") == stage
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateOptions:
    """What is measured, and what it is held against; the recipe's other sections describe the training."""

    stages: tuple[StageName, ...] = USUAL_STAGES
    """What is measured, in this order: copies over links, patterns in memory, results that must be the same
    in every bit (fingerprint), gemm and memory on every device alone and on all at once, the memory of each
    host by its CPU (host_memory: advisory, only where it is named), compute beside communication (overlap),
    collective within each host and over all, a large one again with direct copies of GPUs, the fabric and
    GPUDirect switched off (switched_off: advisory, on GPUs, only where it is named), nccl-tests where they
    are installed, NCCL's own diagnostics (nccl_ras: only where it is named), storage where storage_dir is
    given, training over all, soak (training for soak_s) last."""
    advisory: tuple[StageName, ...] = ()
    """Advisory stages: reported, but without effect on the verdict; all others are required."""
    alone: bool = True
    """Whether gemm and memory are measured on each device alone, too, and not just on all at once."""
    gemm_size: int | Auto = AUTO
    """Size of the square matrix products (m = n = k); auto goes by each device's memory: 8192 on data-centre
    cards, 1024 on a processor (records/sizes.csv)."""
    gemm_precisions: tuple[Precision, ...] | Auto = ("bf16",)
    """Arithmetic of the matrix products, a launch each; auto is bf16 on GPUs and fp32 elsewhere."""
    memory_buffer_bytes: Bytes | Auto = AUTO
    """Length of each buffer of the memory stage, in bytes or as 1G; auto goes by each device's memory and
    cache: 4G on an H100, 64M on a processor."""
    host_memory_buffer_bytes: Bytes = 2**31
    """Length of each of the three buffers of host_memory, in bytes or as 2G: larger than the CPU's caches."""
    window_s: float = 5.0
    """Seconds of each window of gemm, memory and host_memory."""
    start_s: float = 20.0
    """Seconds that starting a launch is expected to take (torch is imported, ranks connect)."""
    collective_s: float = 90.0
    """Seconds that all sizes of a collective are expected to take."""
    collective: dict[str, Any] | None = None
    """Keys of the section `collective` for that stage; null is all_reduce from 8 KiB to 1 GiB. Of max_bytes
    auto is 1 GiB over GPUs and 16 MiB elsewhere."""
    models: tuple[str, ...] = ()
    """Further models that are trained, with the options and the batch size of the first."""
    data_replaced: str | None = None
    """Why the training takes synthetic data in place of a data set that was named; the report says it."""
    strategies: tuple[ParallelStrategy, ...] = ()
    """Further ways of sharing the first model over all devices, such as fsdp."""
    on_gpus: dict[str, Any] = field(default_factory=dict)
    """Keys of the recipe, by their dotted names, that are others where the training is on GPUs: a model that
    fills them where the recipe's own is for a laptop."""
    training_minutes: float = 4.0
    """Time that one launch of training is expected to take: it is counted in steps, not in seconds."""
    soak_s: float = 3600.0
    """Seconds of the soak."""
    soak_launch_s: float = 3600.0
    """Seconds of one launch of it at most: a soak that was cut off goes on with those that are left."""
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Keys of the section `probe` for stages that are probes: fingerprint: {rounds: 3} and so on."""
    storage_dir: str | None = None
    """Folder on every host in which a file is written and read; without it no disk is tried."""
    blame: Literal["when_slow", "always", "never"] = "when_slow"
    """When parts of a host or of the fleet are tested to find who makes a collective slow, wrong or hang."""
    max_drift: float = 0.2
    """Largest share by which steps of training may become longer within a launch."""
    max_spread: float = 0.1
    """Largest spread of launches of training, as a share of their mean; needs three launches."""
    efficiency: dict[str, float] | None = None
    """A contract of scaling efficiency: number of devices, up to which it holds, and the share (8: 0.95)."""
    time_budget_s: float | None = None
    """Seconds for the whole validation; what does not fit is left out, reported, and not measured."""
    expected_hosts: tuple[str, ...] = ()
    """Expected hosts; one that does not answer is NOT-READY."""
    expected_gpus: int | None = None
    """GPUs that each host should have; with one missing it is NOT-READY. Null is what the inventory says,
    else what the scheduler granted, else what the driver lists; CUDA_VISIBLE_DEVICES expects nothing."""
    sku: str | None = None
    """Product that each host is, by its name in hardware/skus.toml: it says how many GPUs there have to be,
    unless expected_gpus does. Null is detected, and what it lacks is advisory."""
    allow_cpu: bool = False
    """Try it without a GPU; the verdict is INCONCLUSIVE at best."""
    allow_exclusions: bool = False
    """End with exit code 0 where all but named hosts and devices are ready."""
    spares: int = 0
    """How many hosts are spare: at the end the hosts to run on are chosen from those that passed."""
    aspects: tuple[RequiredAspect, ...] = HARDWARE
    """What READY needs: aspects and their subjects, each with the measure or the checks that decide it."""
    detects: float = 0.2
    """The largest loss of a rate, as a share, that may go unseen where the verdict is READY."""
    ready_for: str | None = None
    """For what it is ready, where not all that the hardware has is asked for: a job."""
    rules: tuple[Mapping[str, Any], ...] = ()
    """Rules for figures and hosts (docs/guides/rules.md); without rules of figures nothing is READY."""
    rules_source: str = "validate.rules of the recipe"
    """Where the rules come from, as reports name it."""
    rules_recipe: str | None = None
    """The recipe that they are written in, as messages name it; whoever reads it sets this."""
    rules_lines: tuple[int, ...] = ()
    """The line of each of them there, set in the same way."""
    file_rules: str | None = None
    """The text of a file of further rules (--rules); one of the same name takes the place of the recipe's."""
    file_source: str = "--rules"
    """The file, as reports name it."""
    references: str | None = None
    """The text of a file of references of the user's own (--references), beside those of gpuproof."""
    baseline: Mapping[str, Any] | None = None
    """The fleet's own figures (--baseline), as gpuproof baseline record wrote them."""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Arithmetic of the matrix products, once it is known whether there are GPUs (`on`)."""
        assert self.gemm_precisions != AUTO
        return self.gemm_precisions

    @property
    def stated_gpus(self) -> tuple[int, str] | None:
        """How many GPUs each host should have, and which key says so: `expected_gpus`, else `sku`."""
        if self.expected_gpus is not None:
            return self.expected_gpus, "expected_gpus"
        return None if self.sku is None else (find_sku(self.sku).num_gpus, "sku")

    def on(self, *, gpus: bool) -> ValidateOptions:
        """Return the options with values for those that are `auto` and go by whether there are GPUs."""
        collective = self.collective
        if collective is not None and collective.get("max_bytes") == AUTO:
            collective = {**collective, "max_bytes": LARGEST_MESSAGE[gpus]}
        precisions = (USUAL_PRECISION[gpus],) if self.gemm_precisions == AUTO else self.gemm_precisions
        own = self.on_gpus if gpus else {}
        return replace(self, collective=collective, gemm_precisions=precisions, on_gpus=own)

    def __post_init__(self) -> None:
        if not self.stages or len(set(self.stages)) < len(self.stages):
            raise ValueError("stages needs some, each of them once")
        if "fingerprint_hot" in self.stages:
            raise ValueError("fingerprint_hot follows a soak by itself, where fingerprint is a stage")
        if unknown := self.probes.keys() - set(get_args(ProbeName)):
            raise ValueError(
                f"{', '.join(sorted(unknown))}: no probe; there are {', '.join(get_args(ProbeName))}"
            )
        if "soak" in self.stages[:-1]:
            raise ValueError("soak comes last: it warms up what the others would measure")
        seconds = (self.window_s, self.soak_s, self.soak_launch_s, self.start_s, self.collective_s)
        if min(*seconds, self.training_minutes, self.time_budget_s or 1.0) <= 0:
            raise ValueError("seconds and minutes are above 0")
        if not all(up_to.isdecimal() and 0 < share <= 1 for up_to, share in (self.efficiency or {}).items()):
            raise ValueError("efficiency has numbers of devices, each with a share from 0 to 1")
        if not all(
            0 < share <= 0.5 for share in (self.detects, *(row.detects or 0.5 for row in self.aspects))
        ):
            raise ValueError(
                "detects is a share above 0 and at most 0.5: more than half is no rate to speak of"
            )
        self._check_machine()

    def _check_machine(self) -> None:
        if self.sku is not None:
            find_sku(self.sku)
        if self.spares < 0:
            raise ValueError("spares is no negative number")
        num_gpus = 1 if self.expected_gpus is None else self.expected_gpus
        if min(1 if self.gemm_size == AUTO else self.gemm_size, num_gpus) < 1:
            raise ValueError("gemm_size and expected_gpus are at least 1")


def read_options(config: RunConfig) -> ValidateOptions:
    """Return the block of a recipe."""
    return from_json(ValidateOptions, config.suite_options[NAME], place=NAME)
