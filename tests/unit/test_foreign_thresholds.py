"""Thresholds that other tools ship: the 18 that were found unusable are found again, and no sound one is."""

from __future__ import annotations

import pytest

from gpuproof.base.errors import UsageError
from gpuproof.verdict.foreign import find_faults, read_thresholds

# Boards of NVIDIA/DCGM's diag-skus.yaml (read at 72fa3fe), written down anew: name, id, what its test of
# arithmetic reaches in GFLOP/s, the floor of memory bandwidth, and what the comment above that floor derives.
BOARDS = (
    ("PG502-20x", "2336", 30750.0, 127500, "shows ~170000. Multiply by .75 to get ~127500"),
    ("H100 80GB HBM3", "2330", 29250.0, 1905000, "shows ~2540000. Multiply by .75 to get ~1905000.00"),
    ("GA100 20b0", "20b0", 13725.0, 137500.0, "shows ~1830000. Multiply by .75 to get 1372500"),
    ("Nvidia L40", "26b5", 30000.0, 49050, "shows ~65400. Multiply by .75 to get ~49050"),
    ("H100 64GB HBM2e", "2337", 40000.0, 122250.0, "shows ~163000. Multiply by .75 to get ~122250.00"),
    ("H200", "2335", 37500.0, 2333, "shows 3110. Multiply by .75 to get 2333"),
    ("V100 SXM2 32GB", "1db1", 3500.0, 607500.0, ""),
    ("A100 PCIe", "20f1", 5963.0, 969750.0, ""),
    ("A100-SXM4-80GB", "20b2", 6975.0, 1173000.0, ""),
    ("A40", "2235", 14250.0, 423675.0, ""),
    ("A30", "20b7", 7050.5, 585000.0, ""),
    ("A100 20b5", "20b5", 13425.0, 1121250.0, ""),
    ("H800 80GB", "2324", 40000.0, 1920000.0, ""),
    ("GH200", "2342", 37075.0, 2130000, ""),
    ("H20A", "2329", 17700, 1507000, ""),
    ("H200 NVL", "233b", 32218, 2212500, ""),
    ("B200", "2901", 36949, 4072500, ""),
    ("B300", "3182", 36825, 4623360, ""),
    ("GB300", "31c2", 48750, 4522500, ""),
    ("RTX 2000 Ada", "28b0", 13537.5, 155250, ""),
    ("L20", "26b7", 27000.0, 491250, ""),
)
DCGM_FAULTS = {
    "PG502-20x (2336)": "vacuous",
    "GA100 20b0 (20b0)": "contradictory",
    "Nvidia L40 (26b5)": "vacuous",
    "H100 64GB HBM2e (2337)": "vacuous",
    "H200 (2335)": "vacuous",
}


def dcgm(boards: tuple[tuple[str, str, float, float, str], ...] = BOARDS) -> str:
    lines = ["version: x", "skus:"]
    for name, number, stress, floor, comment in boards:
        lines += [
            f"  - name: {name}",
            f"    id: '{number}'",
            "    sm_stress:",
            f"      target_stress: {stress}",
        ]
        lines += ["    memory_bandwidth:", "      is_allowed: true"]
        lines += [f"      # {comment}"] if comment else []
        lines += [f"      minimum_bandwidth: {floor}"]
    return "\n".join(lines)


def test_five_floors_of_dcgm_are_found_and_the_others_are_not() -> None:
    thresholds = read_thresholds(dcgm(), "dcgm", source="diag-skus.yaml")

    found = {fault.name.rpartition(" ")[0]: fault.fault for fault in find_faults(thresholds)}

    assert found == DCGM_FAULTS
    assert len(thresholds) == 2 * len(BOARDS)
    assert all(fault.place.startswith("diag-skus.yaml:") for fault in find_faults(thresholds))


HEADER = (
    "name,quantity,value,unit,board,chip,dtype,direction,size_bytes,num_hosts,ranks_per_host,"
    "cards_bytes_per_s,option,setting,model,comment\n"
)
MIB_256 = 256 * 2**20
UNUSABLE = {
    # The rows that are no DCGM floors, each with the rows of its own file that show what is wrong with it.
    "MI210 bf16": (
        "MI210 bf16,matrix multiply,41e12,FLOP/s,MI210,,bf16,,,,,,,,,\n"
        "MI210 fp16,matrix multiply,150e12,FLOP/s,MI210,,fp16,,,,,,,,,\n",
        "contradictory",
    ),
    "MI450X stress": ("MI450X stress,matrix multiply,0,FLOP/s,MI450X,,,,,,,,,,,\n", "vacuous"),
    "A100 D2H": (
        "A100 D2H,host link,6.27e9,B/s,A100 80GB,,,d2h,,,,,,,,\n"
        "A100 H2D,host link,26.28e9,B/s,A100 80GB,,,h2d,,,,,,,,\n",
        "contradictory",
    ),
    "GB200 MNNVL off": (
        "GB200 MNNVL on,all_reduce,838.07e9,B/s,GCP GB200,,,,16000000000,2,,,MNNVL,on,,\n"
        "GB200 MNNVL off,all_reduce,837.76e9,B/s,GCP GB200,,,,16000000000,2,,,MNNVL,off,,\n",
        "no effect",
    ),
    "any NCCL floor": ("any NCCL floor,all_reduce,100e9,B/s,,,,,,,,,,,,\n", "vacuous"),
    "any NCCL default": ("any NCCL default,all_reduce,0,B/s,,,,,,,,,,,,\n", "vacuous"),
    "p4d": ("p4d,all_reduce,300e9,B/s,p4d,A100,,,134217728,2,8,50e9,,,,\n", "impossible"),
    "p5": ("p5,all_reduce,800e9,B/s,p5,H100,,,134217728,2,8,400e9,,,,\n", "impossible"),
    "p5en": ("p5en,all_reduce,800e9,B/s,p5en,H200,,,134217728,2,8,400e9,,,,\n", "impossible"),
    "p6": ("p6,all_reduce,900e9,B/s,p6,B200,,,134217728,2,8,400e9,,,,\n", "impossible"),
    "p4d NVLink": (f"p4d NVLink,all_reduce,200e9,B/s,p4d,A100,,,{MIB_256},1,8,,,,,\n", "unverified"),
    "p5 NVLink": (f"p5 NVLink,all_reduce,500e9,B/s,p5,H100/H200,,,{MIB_256},1,8,,,,,\n", "beyond published"),
    "p6 NVLink": (f"p6 NVLink,all_reduce,600e9,B/s,p6,B200,,,{MIB_256},1,8,,,,,\n", "unverified"),
    "Megatron 8B bf16": (
        "Megatron 8B bf16,training,1000,tokens/s,MI325X,,bf16,,,,,,,,8B,\n"
        "Megatron 8B fp8,training,1000,tokens/s,MI325X,,fp8,,,,,,,,8B,\n"
        "Megatron 70B bf16,training,1000,tokens/s,MI325X,,bf16,,,,,,,,70B,\n",
        "placeholder",
    ),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_threshold_that_was_found_unusable_is_found_again(name: str) -> None:
    rows, fault = UNUSABLE[name]

    found = {f.name: f.fault for f in find_faults(read_thresholds(HEADER + rows, "table", source="t.csv"))}

    assert found[name] == fault


def test_thirteen_rows_of_the_list_and_five_of_dcgm_are_all_eighteen() -> None:
    rows_of_the_list = set(UNUSABLE) - {
        "any NCCL default"
    }  # of one row: its floor, and what it is by default

    assert len(rows_of_the_list) + len(DCGM_FAULTS) == 18


SOUND = (
    "MI300X bf16,matrix multiply,581e12,FLOP/s,MI300X,,bf16,,,,,,,,,\n"
    "MI300X fp16,matrix multiply,639e12,FLOP/s,MI300X,,fp16,,,,,,,,,\n"
    "MI100 bf16,matrix multiply,76.7e12,FLOP/s,MI100,,bf16,,,,,,,,,\n"
    "MI100 fp16,matrix multiply,150.6e12,FLOP/s,MI100,,fp16,,,,,,,,,\n"
    "H200 H2D,host link,52e9,B/s,H200,,,h2d,,,,,,,,\n"
    "H200 D2H,host link,52e9,B/s,H200,,,d2h,,,,,,,,\n"
    "H100 EFA,all_reduce,487.87e9,B/s,p5,H100,,,16000000000,2,8,400e9,,,,over the cards and legal\n"
    "H100 16 GiB,all_reduce,460e9,B/s,ND96isr,H100,,,17179869184,1,8,,,,,\n"
    "GB200 on,all_reduce,882.5e9,B/s,AWS GB200,,,,16000000000,4,,,MNNVL,on,,\n"
    "GB200 off,all_reduce,191.4e9,B/s,AWS GB200,,,,16000000000,4,,,MNNVL,off,,\n"
)


def test_sound_thresholds_have_no_fault() -> None:
    assert find_faults(read_thresholds(HEADER + SOUND, "table", source="t.csv")) == []


NODE_CHECKS = """\
# a comment
 * || check_hw_cpuinfo 2 96 96
 * || check_hw_ib 400 mlx5_ib0:1
 * || check_hw_ib 400 mlx5_ib1:1
 * || check_gpu_count 8
 * || check_gpu_bw 48 335
 * || check_nccl_allreduce {floor} 1 /opt/topo.xml 16G
 * || check_ib_bw_gdr {card}
#* || check_ib_bw_gdr 9999
"""


def test_node_checks_are_held_against_cards_and_published_figures() -> None:
    def faults(**numbers: float) -> dict[str, str]:
        text = NODE_CHECKS.format(**numbers)
        return {
            f.name.split()[0]: f.fault for f in find_faults(read_thresholds(text, "aznhc", source="nd.conf"))
        }

    assert faults(floor=460.0, card=380) == {}
    assert faults(floor=460.0, card=500) == {"check_ib_bw_gdr": "impossible"}
    assert faults(floor=0, card=0) == {"check_ib_bw_gdr": "vacuous", "check_nccl_allreduce": "vacuous"}


DIAGNOSIS = """\
version: v0.9
superbench:
  rules:
    gemm:
      function: variance
      criteria: 'lambda x:x<-0.05'
      categories: GEMM
      metrics: [gemm-flops/.*]
    broken:
      function: variance
      criteria: 'lambda x:x<-1.5'
      categories: GEMM
      metrics: [gemm-flops/.*]
    code:
      function: value
      criteria: 'lambda x: __import__("os")'
      categories: GEMM
      metrics: [gemm-flops/.*]
    dead:
      function: variance
      criteria: 'lambda x:x<-0.05'
      categories: TC
      metrics: []
    torn:
      function: variance
      criteria: 'lambda x:x<-0.05'
      categories: TC
      metrics: ['gemm-flops/(.*']
    return_code:
      function: value
      criteria: 'lambda x:x>0'
      categories: Failed
      metrics: [.*/return_code]
    counted:
      function: multi_rules
      criteria: 'lambda label:True if label["gemm"]>=2 else False'
      categories: GEMM
"""


def test_rules_of_diagnosis_are_read_and_never_run() -> None:
    thresholds = read_thresholds(DIAGNOSIS, "superbench", source="rules.yaml")

    assert {f.name: f.fault for f in find_faults(thresholds)} == dict.fromkeys(
        ("broken", "code", "dead", "torn"), "vacuous"
    )
    assert len(thresholds) == 6


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("a: 1", "dcgm"),
        ("skus: []", "dcgm"),
        ("hello", "aznhc"),
        ("superbench: {rules: {}}", "superbench"),
        ("name,quantity,value,unit\n", "table"),
        ("name,value\nx,1\n", "table"),
        ("name,quantity,value,unit,colour\nx,y,1,s,red\n", "table"),
        ("name,quantity,value,unit\nx,y,many,s\n", "table"),
    ],
)
def test_a_file_of_something_else_is_refused(text: str, form: str) -> None:
    with pytest.raises(UsageError):
        read_thresholds(text, form, source="file")
