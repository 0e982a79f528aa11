#!/usr/bin/env bash
# One host's part of a run over several hosts. Start it on every host with the same words:
#
#   MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 NNODES=2 NODE_RANK=0 NPROC_PER_NODE=8 \
#     bash scripts/run_multi_node.sh configs/synthetic_resnet50.yaml --training.precision=bf16
#
#   MASTER_ADDR     an address of the host with NODE_RANK 0 that all hosts reach
#   MASTER_PORT     a free port there, that the firewall lets through, as well as the ports that the ranks choose
#   NNODES          the number of hosts
#   NODE_RANK       this host among them, from 0
#   NPROC_PER_NODE  ranks on each host, one a device
#   PYTHON          the Python that has gpuproof (default: .venv/bin/python of the checkout, else python3)
#   GPUPROOF        the gpuproof command, in place of `PYTHON -m gpuproof` (no default)
#
# The report and the run directory are made on the host with NODE_RANK 0; no disk needs to be shared. The
# rendezvous is static, so that ranks are where NODE_RANK says. torchrun ends with 1 whatever failed:
# `gpuproof report RUN` gives the run's own exit code. Each launch is one: run.repeats stays at 1.
#
# Where several networks are: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name the interface.
# If it hangs or fails: gpuproof doctor --multi-node --help
#
# Under Slurm, one task a host (in a file for sbatch):
#
#   #SBATCH --nodes=2
#   #SBATCH --ntasks-per-node=1
#   #SBATCH --gpus-per-node=8
#   export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
#   export MASTER_PORT=29500 NNODES=$SLURM_NNODES NPROC_PER_NODE=8
#   srun bash -c 'NODE_RANK=$SLURM_NODEID exec bash scripts/run_multi_node.sh configs/synthetic_resnet50.yaml'
set -euo pipefail

fail() { echo "run_multi_node.sh: $1" >&2; exit 2; }

need() { # NAME MEANING: the variable is set
  [ -n "${!1:-}" ] || fail "$1 is not set: $2"
}

need_number() { # NAME LOWEST HIGHEST MEANING: it is set, to a whole number from LOWEST to HIGHEST
  need "$1" "$4"
  [[ ${!1} =~ ^(0|[1-9][0-9]{0,5})$ ]] && [ "${!1}" -ge "$2" ] && [ "${!1}" -le "$3" ] ||
    fail "$1=${!1} must be a whole number from $2 to $3: $4"
}

[ $# -ge 1 ] || fail "needs a config: bash scripts/run_multi_node.sh configs/synthetic_resnet50.yaml"
config=$1
shift
need MASTER_ADDR "an address of the host with NODE_RANK 0"
need_number MASTER_PORT 1 65535 "a free port of the host with NODE_RANK 0"
need_number NNODES 1 65536 "the number of hosts"
need_number NODE_RANK 0 $((NNODES - 1)) "this host among the $NNODES, from 0"
need_number NPROC_PER_NODE 1 1024 "the ranks on each host"

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  [ ! -x "$checkout/.venv/bin/python" ] || PYTHON=$checkout/.venv/bin/python
fi
command -v "$PYTHON" >/dev/null || fail "PYTHON='$PYTHON' is no program (make run installs .venv)"
script=(--no-python "$PYTHON" -P -m gpuproof)
if [ -n "${GPUPROOF:-}" ]; then
  command -v "$GPUPROOF" >/dev/null || fail "GPUPROOF='$GPUPROOF' is no program"
  script=(--no-python "$GPUPROOF")
fi

# torchrun sets the ranks' own variables, and would take the number of threads for a wish of the user's.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK
status=0
"$PYTHON" -P -m torch.distributed.run \
  --nnodes="$NNODES" --node-rank="$NODE_RANK" --nproc-per-node="$NPROC_PER_NODE" \
  --rdzv-backend=static --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \
  "${script[@]}" run "$config" "$@" || status=$?
if [ "$status" -ne 0 ]; then
  {
    echo "run_multi_node.sh: node $NODE_RANK ($(hostname)) ended with status $status. The run's own report is node 0's."
    echo "The way between the hosts, on each of them at once:"
    echo "  gpuproof doctor --multi-node --master $MASTER_ADDR --port $MASTER_PORT --node-rank $NODE_RANK --nodes $NNODES"
  } >&2
fi
exit "$status"
