"""What a scrape gets beside plain readings: events, free memory, MIG instances, and who uses a GPU."""

from __future__ import annotations

from typing import Any

import pytest

import recordings as rec
from gpuproof.observe.live_state import LiveState
from gpuproof.observe.prometheus.families import families
from gpuproof.records.readings import KERNEL_LOG, DeviceProcesses, DriverEvent, UnavailableMetrics

Lines = dict[tuple[str, str], list[tuple[dict[str, str], float]]]


def served(records: list[Any]) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Name of each line → its labels and values."""
    state = LiveState()
    state.apply(records)
    lines: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in families(state, fresh=True):
        for sample in family.samples:
            lines.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return lines


def by(lines: list[tuple[dict[str, str], float]], label: str, index: str = "0") -> dict[str, float]:
    return {labels[label]: value for labels, value in lines if labels["index"] == index}


def announced(at_s: float, event: str, code: int | None = None, gpu: int = 0) -> DriverEvent:
    return DriverEvent(
        monotonic_s=rec.MONOTONIC_S + at_s, physical_index=gpu, event=event, code=code, message="said"
    )


def using(*processes: dict[str, Any], gpu: int = 0) -> DeviceProcesses:
    return DeviceProcesses(
        monotonic_s=rec.MONOTONIC_S + 1, devices={str(gpu): {"processes": list(processes)}}
    )


def test_events_are_counted_by_kind_and_xids_by_code_however_many_there_were() -> None:
    many = [announced(n / 100, "xid", 31) for n in range(200)]
    lines = served(
        [
            rec.header([rec.identity(0, vendor="nvidia"), rec.identity(1, vendor="nvidia")]),
            rec.sample(0, {0: {"power_w": 1.0}, 1: {"power_w": 1.0}}),
            *many,
            announced(3, "xid", 79),
            announced(3, "lost"),
            announced(4, "recovered"),
        ]
    )
    first = by(lines["gpuproof_gpu_events_total"], "event")
    assert first == {"lost": 1, "recovered": 1, "hung": 0, "unreadable": 0, "xid": 201, "ecc_uncorrected": 0}
    assert set(by(lines["gpuproof_gpu_events_total"], "event", "1").values()) == {0}
    assert by(lines["gpuproof_gpu_xid_errors_total"], "xid") == {"31": 200, "79": 1}
    assert [value for _, value in lines["DCGM_FI_DEV_XID_ERRORS"]] == [79]


def test_where_nobody_can_listen_no_xid_is_not_told_as_none() -> None:
    deaf = UnavailableMetrics(
        monotonic_s=rec.MONOTONIC_S, physical_index=0, reasons={"driver_events": "Not Supported"}
    )
    nvidia = rec.identity(0, vendor="nvidia")
    lines = served([rec.header([nvidia]), rec.sample(0, {0: {"power_w": 1.0}}), deaf])
    assert set(by(lines["gpuproof_gpu_events_total"], "event")) == {"lost", "recovered", "hung", "unreadable"}


def test_a_flag_that_comes_up_is_an_event_and_one_that_was_up_is_not() -> None:
    flags = ({"remapped_rows_pending": up, "remapped_rows_failed": 1.0} for up in (0.0, 1.0, 1.0))
    samples = [rec.sample(t, {0: flag}) for t, flag in enumerate(flags)]
    lines = served([rec.header([rec.identity(0)]), *samples])
    events = by(lines["gpuproof_gpu_events_total"], "event")
    assert (events["row_remap_pending"], events["row_remap_failed"]) == (1, 0)
    assert [value for _, value in lines["DCGM_FI_DEV_ROW_REMAP_PENDING"]] == [1.0]


def test_a_device_is_up_while_it_answers() -> None:
    records = [rec.header([rec.identity(0), rec.identity(1)]), rec.sample(0, {0: {"power_w": 1.0}, 1: {}})]
    assert by(served(records)["gpuproof_gpu_up"], "index") == {"0": 1.0}
    assert by(served(records)["gpuproof_gpu_up"], "index", "1") == {"1": 0.0}


def test_free_memory_is_what_is_neither_used_nor_held_back() -> None:
    values = {"mem_used_bytes": 20.0 * rec.GIB, "mem_reserved_bytes": 4.0 * rec.GIB}
    lines = served([rec.header([rec.identity(0)]), rec.sample(0, {0: values})])
    assert lines["gpuproof_gpu_memory_free_bytes"][0][1] == 56 * rec.GIB
    assert lines["DCGM_FI_DEV_FB_FREE"][0][1] == 56 * 1024
    assert lines["DCGM_FI_DEV_FB_USED_PERCENT"][0][1] == pytest.approx(20 / 76)
    without = served([rec.header([rec.identity(0)]), rec.sample(0, {0: {"power_w": 1.0}})])
    assert "gpuproof_gpu_memory_free_bytes" not in without


def test_a_mig_instance_is_named_by_its_gpu_and_its_number_as_dcgm_does() -> None:
    whole = rec.identity(0, static={"mig_mode": "enabled"})
    facts = {"mem_total_bytes": 10 * rec.GIB, "mig_gpu_instance_id": 7, "mig_parent_uuid": whole.uuid}
    part = rec.identity(1, uuid="MIG-7", static=facts)
    lines = served([rec.header([whole, part]), rec.sample(0, {1: {"mem_used_bytes": 1.0 * rec.GIB}})])
    ((theirs, _),) = lines["DCGM_FI_DEV_FB_USED"]
    assert (theirs["gpu"], theirs["UUID"], theirs["GPU_I_ID"]) == ("0", "GPU-0000", "7")
    info = {labels["uuid"]: labels for labels, _ in lines["gpuproof_gpu_info"]}
    assert (info["MIG-7"]["gpu_instance_id"], info["MIG-7"]["parent_uuid"]) == ("7", "GPU-0000")
    assert info["GPU-0000"]["gpu_instance_id"] == ""


POD = {"pod": "train-0", "namespace": "team", "container": "main"}


def test_processes_are_counted_for_each_pod_and_job_and_a_gpu_of_one_names_it_to_dcgms_dashboards() -> None:
    head, sample = rec.header([rec.identity(0)]), rec.sample(0, {0: {"power_w": 1.0}})
    one = {"pid": 1, "mem_used_bytes": 100, "kind": "compute", **POD}
    lines = served([head, sample, using(one, {**one, "pid": 2})])
    ((labels, num),) = lines["gpuproof_gpu_processes"]
    assert (num, labels["pod"], labels["container"], labels["slurm_job"]) == (2, "train-0", "main", "")
    assert lines["gpuproof_gpu_process_memory_bytes"][0][1] == 200
    assert lines["DCGM_FI_DEV_POWER_USAGE"][0][0]["pod"] == "train-0"
    shared = served([head, sample, using(one, {"pid": 3, "mem_used_bytes": None, "slurm_job": "12"})])
    assert {labels["slurm_job"]: value for labels, value in shared["gpuproof_gpu_processes"]} == {
        "": 1.0,
        "12": 1.0,
    }
    assert len(shared["gpuproof_gpu_process_memory_bytes"]) == 1  # of the other one nothing is told
    assert shared["DCGM_FI_DEV_POWER_USAGE"][0][0]["pod"] == ""
    job = served([head, sample, using({"pid": 3, "mem_used_bytes": 5, "slurm_job": "12"})])
    assert job["DCGM_FI_DEV_POWER_USAGE"][0][0]["hpc_job"] == "12"


def test_nvidias_reasons_are_dcgms_bits_and_other_vendors_are_not() -> None:
    held = {0: ("power_cap", "thermal_software"), 1: ("power_cap",)}
    devices = [rec.identity(0, vendor="nvidia"), rec.identity(1, vendor="amd")]
    sample = rec.sample(0, {0: {"power_w": 1.0}, 1: {"power_w": 1.0}}, reasons=held)
    lines = served([rec.header(devices), sample])
    assert [value for _, value in lines["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"]] == [0x24]


LOGGED = DriverEvent(
    monotonic_s=rec.MONOTONIC_S + 2,
    physical_index=0,
    event=KERNEL_LOG,
    code=None,
    message="NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.",
)


@pytest.mark.parametrize(
    "reports", [[LOGGED], [announced(1, "xid", 79), LOGGED], [LOGGED, announced(3, "xid", 79)]]
)
def test_an_xid_is_one_whether_library_log_or_both_report_it(reports: list[DriverEvent]) -> None:
    lines = served(
        [rec.header([rec.identity(0, vendor="nvidia")]), rec.sample(0, {0: {"power_w": 1.0}}), *reports]
    )
    events = by(lines["gpuproof_gpu_events_total"], "event")
    assert {event: n for event, n in events.items() if n} == {"xid": 1}
    assert by(lines["gpuproof_gpu_xid_errors_total"], "xid") == {"79": 1}


def test_events_that_name_no_gpu_are_counted_for_the_host() -> None:
    line = "4,1,2,-;nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    switch = DriverEvent(
        monotonic_s=rec.MONOTONIC_S + 2, physical_index=None, event=KERNEL_LOG, code=None, message=line
    )
    lines = served([rec.header([rec.identity(0)]), rec.sample(0, {0: {"power_w": 1.0}}), switch])
    assert lines["gpuproof_host_events_total"] == [({"host": "node7", "event": "sxid 20034"}, 1)]


def test_compute_instances_on_one_gpu_instance_are_one_line_under_dcgms_name() -> None:
    whole = rec.identity(0, static={"mig_mode": "enabled"})
    facts = {"mem_total_bytes": 10 * rec.GIB, "mig_gpu_instance_id": 7, "mig_parent_uuid": whole.uuid}
    parts = [
        rec.identity(i + 1, uuid=f"MIG-{i}", static={**facts, "mig_compute_instance_id": i}) for i in (0, 1)
    ]
    lines = served(
        [rec.header([whole, *parts]), rec.sample(0, {1: {"mem_used_bytes": 1.0}, 2: {"mem_used_bytes": 1.0}})]
    )
    assert (len(lines["DCGM_FI_DEV_FB_USED"]), len(lines["gpuproof_gpu_memory_used_bytes"])) == (1, 2)
