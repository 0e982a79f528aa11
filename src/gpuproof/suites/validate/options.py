"""The `validate` block of a recipe: which stages run, how long, by which rules, what is allowed."""

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
"""All stages, in the order in which they are measured; the last one automatically follows a soak."""
ABOVE_0 = (
    *("window_s", "start_s", "collective_s", "training_minutes", "soak_s", "soak_launch_s"),
    "time_budget_s",
)
FROM_0 = ("max_drift", "max_spread", "spares")
FROM_1 = ("gemm_size", "expected_gpus")
"""Options by the least value that they accept."""
USUAL_STAGES: tuple[StageName, ...] = tuple(
    name
    for name in STAGE_NAMES
    if name not in ("host_memory", "switched_off", "nccl_ras", "soak", "fingerprint_hot")
)
LARGEST_MESSAGE: Mapping[bool, str] = {True: "1G", False: "16M"}
USUAL_PRECISION: Mapping[bool, Precision] = {True: "bf16", False: "fp32"}
"""Values for GPUs, and for other devices."""
HARDWARE = tuple(
    from_json(RequiredAspect, row, place="hardware.toml")
    for row in tomllib.loads(packaged_text("suites/validate/hardware.toml"))["aspects"]
)
"""Requirements for READY if the recipe does not list any: everything that the hardware has."""


def rows_of_stage(stage: str) -> tuple[RequiredAspect, ...]:
    """Return what READY requires for a single stage: its own rows, and the state of its hardware."""
    rates = {row.aspect for row in HARDWARE if row.labels.get("stage") == stage} - {"right results"}
    return tuple(
        row for row in HARDWARE if row.aspect in ("state", *rates) or row.labels.get("stage") == stage
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateOptions:
    """Measurements and what they are compared with; other sections of the recipe describe training."""

    stages: tuple[StageName, ...] = USUAL_STAGES
    """Stages to measure, in this order: copies over links, patterns in memory, results that must be
    bit-identical (fingerprint), gemm and memory on each device alone and on all devices concurrently, the
    memory of each host by its CPU (host_memory: advisory, only if listed), compute during communication
    (overlap), collective within each host and over all hosts, a large collective again with direct GPU
    copies, the fabric and GPUDirect switched off (switched_off: advisory, on GPUs, only if listed),
    nccl-tests if they are installed, NCCL's own diagnostics (nccl_ras: advisory, only if listed), storage if
    storage_dir is given, training over all devices, and finally soak (training for soak_s)."""
    advisory: tuple[StageName, ...] = ()
    """Advisory stages: reported, but with no effect on the verdict. host_memory, switched_off and nccl_ras
    always are, and storage without storage_dir; all other stages are required."""
    alone: bool = True
    """Whether gemm and memory are also measured on each device alone, not only on all of them
    concurrently."""
    gemm_size: int | Auto = AUTO
    """Size of the square matmuls (m = n = k); auto depends on each device's memory: 8192 on data-centre
    cards, 1024 on a CPU (records/sizes.csv)."""
    gemm_precisions: tuple[Precision, ...] | Auto = ("bf16",)
    """Data types of the matmuls, one launch each; auto means bf16 on GPUs and fp32 elsewhere."""
    memory_buffer_bytes: Bytes | Auto = AUTO
    """Size of each buffer of the memory stage, in bytes or e.g. as 1G; auto depends on each device's memory
    and cache: 4G on an H100, 64M on a CPU."""
    host_memory_buffer_bytes: Bytes = 2**31
    """Length of each of host_memory's three buffers, in bytes or e.g. as 2G; larger than the CPU's caches."""
    window_s: float = 5.0
    """Length of each measurement window of gemm, memory and host_memory, in seconds."""
    start_s: float = 20.0
    """Expected start-up time of a launch, in seconds (importing torch, connecting ranks)."""
    collective_s: float = 90.0
    """Expected time for a collective over all sizes, in seconds."""
    collective: dict[str, Any] | None = None
    """Keys of the section `collective` that apply to the collective stage; null is all_reduce from 8 KiB to 1
    GiB. For max_bytes, auto is 1 GiB on GPUs and 16 MiB elsewhere."""
    models: tuple[str, ...] = ()
    """Additional models to train, with their default options, synthetic data, and the recipe's batch size and
    training settings; on_gpus does not apply to them."""
    data_replaced: str | None = None
    """Why training uses synthetic data instead of the given data set; shown in the report."""
    strategies: tuple[ParallelStrategy, ...] = ()
    """Additional ways of sharding the first model over all devices, e.g. fsdp."""
    on_gpus: dict[str, Any] = field(default_factory=dict)
    """Recipe keys, by dotted name, that have different values for training on GPUs, e.g. a model that
    saturates them if the recipe's own model is sized for a laptop."""
    training_minutes: float = 4.0
    """Expected time of one training launch, since its length is given in steps and not in seconds."""
    soak_s: float = 3600.0
    """Length of the soak, in seconds."""
    soak_launch_s: float = 3600.0
    """Maximum length of one soak launch in seconds: an interrupted soak continues with the remaining
    launches."""
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Keys of the section `probe` for stages that are probes, e.g. fingerprint: {rounds: 3}."""
    storage_dir: str | None = None
    """Folder on every host in which a test file is written and read; without it, no disk is tested."""
    blame: Literal["when_slow", "always", "never"] = "when_slow"
    """When to test parts of a host or the fleet to find what slows, corrupts or hangs a collective."""
    max_drift: float = 0.2
    """Maximum fraction by which training steps may slow down during a launch."""
    max_spread: float = 0.1
    """Maximum spread of training launches, as a fraction of their mean; needs at least three launches."""
    efficiency: dict[str, float] | None = None
    """A scaling-efficiency contract: the maximum number of devices it applies to, and the required fraction
    ({"8": 0.95})."""
    time_budget_s: float | None = None
    """Time budget for the entire validation in seconds; anything that does not fit is skipped and reported as
    not measured."""
    expected_hosts: tuple[str, ...] = ()
    """Expected hosts; a host that does not respond is NOT-READY."""
    expected_gpus: int | None = None
    """Number of GPUs that each host should have; if one is missing, the host is NOT-READY. With null, the
    number comes from sku, else from the inventory, else from the scheduler's grant, else from the driver's
    list. CUDA_VISIBLE_DEVICES does not change it."""
    sku: str | None = None
    """Product name of each host, as in hardware/skus.toml: it sets how many GPUs are expected, unless
    expected_gpus does. With null it is detected, and missing parts are only advisory."""
    allow_cpu: bool = False
    """Whether to try the validation without a GPU; the verdict is INCONCLUSIVE at best."""
    allow_exclusions: bool = False
    """Whether to exit with code 0 if everything other than the excluded hosts and devices is ready."""
    spares: int = 0
    """Number of spare hosts: at the end, the hosts to run on are chosen from the hosts that passed."""
    aspects: tuple[RequiredAspect, ...] = HARDWARE
    """Requirements for READY: aspects and their subjects, each with the measure or checks that decide it."""
    detects: float = 0.2
    """Largest loss of a rate, as a fraction, that may go undetected if the verdict is READY."""
    ready_for: str | None = None
    """What the machine is ready for, e.g. a job, if it needs less than the full hardware."""
    rules: tuple[Mapping[str, Any], ...] = ()
    """Rules for metrics and hosts (docs/guides/rules.md); without metric rules, nothing is READY."""
    rules_source: str = "validate.rules of the recipe"
    """The source of the rules, as named in reports."""
    rules_recipe: str | None = None
    """The recipe that contains the rules, as named in messages; set by the reader."""
    rules_lines: tuple[int, ...] = ()
    """The line of each rule in the recipe; also set by the reader."""
    file_rules: str | None = None
    """The text of an additional rules file (--rules); a rule of the same name replaces the recipe's."""
    file_source: str = "--rules"
    """The rules file, as named in reports."""
    references: str | None = None
    """The text of the user's own references file (--references), used in addition to gpuproof's
    references."""
    baseline: Mapping[str, Any] | None = None
    """The fleet's own values (--baseline), as written by gpuproof baseline record."""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Data types of the matmuls, given whether there are GPUs (`on`)."""
        assert self.gemm_precisions != AUTO
        return self.gemm_precisions

    @property
    def stated_gpus(self) -> tuple[int, str] | None:
        """How many GPUs each host should have, and the key that sets it: `expected_gpus`, else `sku`."""
        if self.expected_gpus is not None:
            return self.expected_gpus, "expected_gpus"
        return None if self.sku is None else (find_sku(self.sku).num_gpus, "sku")

    def on(self, *, gpus: bool) -> ValidateOptions:
        """Return the options, with `auto` values resolved according to whether there are GPUs."""
        collective = self.collective
        if collective is not None and collective.get("max_bytes") == AUTO:
            collective = {**collective, "max_bytes": LARGEST_MESSAGE[gpus]}
        precisions = (USUAL_PRECISION[gpus],) if self.gemm_precisions == AUTO else self.gemm_precisions
        own = self.on_gpus if gpus else {}
        return replace(self, collective=collective, gemm_precisions=precisions, on_gpus=own)

    def __post_init__(self) -> None:
        if not self.stages or len(set(self.stages)) < len(self.stages):
            raise ValueError("stages needs at least one stage, each listed only once")
        if "fingerprint_hot" in self.stages:
            raise ValueError("fingerprint_hot automatically follows a soak if fingerprint is a stage")
        if unknown := self.probes.keys() - set(get_args(ProbeName)):
            raise ValueError(f"{', '.join(sorted(unknown))}: not among {', '.join(get_args(ProbeName))}")
        if "soak" in self.stages[:-1]:
            raise ValueError("soak must come last: it heats up what the other stages would measure")
        if not all(up_to.isdecimal() and 0 < share <= 1 for up_to, share in (self.efficiency or {}).items()):
            raise ValueError("efficiency needs numbers of devices, each with a fraction from 0 to 1")
        if not all(
            0 < share <= 0.5 for share in (self.detects, *(row.detects or 0.5 for row in self.aspects))
        ):
            raise ValueError(
                "detects must be a fraction above 0 and at most 0.5: with a loss above half there "
                "is no meaningful rate"
            )
        self._check_rows_and_numbers()

    def _check_rows_and_numbers(self) -> None:
        if self.sku is not None:
            find_sku(self.sku)
        for row in self.aspects:
            if row.measure is None and not row.checks:  # it would pass without a measurement
                raise ValueError(f"aspects: {row.title}: name the measure or the checks that decide it")
        for names, least in ((ABOVE_0, "above 0"), (FROM_0, "0 or more"), (FROM_1, "at least 1")):
            for name in names:
                value = getattr(self, name)
                if value in (None, AUTO):
                    continue
                if value < 0 or (value == 0 and names is not FROM_0) or (value < 1 and names is FROM_1):
                    raise ValueError(f"{name} must be {least}")


def read_options(config: RunConfig) -> ValidateOptions:
    """Return the recipe's block."""
    return from_json(ValidateOptions, config.suite_options[NAME], place=NAME)
