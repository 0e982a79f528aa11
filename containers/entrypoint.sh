#!/usr/bin/env bash
# What a container of gpuproof does: options alone are `gpuproof validate`'s, with one process a visible GPU.
# A command of gpuproof's, or a program such as all_reduce_perf, is run as it stands.
set -euo pipefail

refuse() {
  echo "gpuproof: $1. $2." >&2
  exit 5
}

if [ "$#" -gt 0 ] && [ "${1#-}" = "$1" ]; then
  case $1 in  # gpuproof's commands come before programs of the same name, such as coreutils' test
    baseline | cloud | compare | completion | config | doctor | init | kubernetes | load | matrix | monitor | plugins) exec gpuproof "$@" ;;
    report | rules | run | runs | scale | selftest | test | validate) exec gpuproof "$@" ;;
  esac
  if type -P "$1" > /dev/null; then exec "$@"; fi
  exec gpuproof "$@"
fi

visible=$(python3 -c 'import torch; print(torch.cuda.device_count())') || refuse "PyTorch cannot be asked for GPUs" "Look above for why"
step_tasks=${SLURM_STEP_TASKS_PER_NODE:-1}

if [ -n "${RANK:-}" ]; then
  # A launcher started this process as one of several: torchrun, PyTorchJob, or a person.
  [ -n "${WORLD_SIZE:-}" ] || refuse "RANK is set and WORLD_SIZE is not" "Set both, or neither"
  used=${LOCAL_WORLD_SIZE:-1}
  processes=()
elif [ -n "${SLURM_STEP_ID:-}" ] && [ "${SLURM_STEP_NUM_TASKS:-1}" -gt 1 ]; then
  used=${step_tasks%%[!0-9]*}
  processes=()
else
  if [ -n "${KUBERNETES_SERVICE_HOST:-}" ] && [ "${NNODES:-}" != 1 ]; then
    refuse "this pod does not know its rank" "Set NNODES=1 if it is alone; for several start 'gpuproof run --on kubernetes' where you have a kubeconfig"
  fi
  used=$visible
  for word in "$@"; do
    case $word in
      --nproc=*) used=${word#*=} ;;
      --devices | --devices=* | --nproc) used=named ;;
    esac
  done
  processes=()
  if [ "$used" = "$visible" ] && [ "$visible" -gt 0 ]; then processes=("--nproc=$visible"); fi
fi

if [ "$used" = named ]; then
  refuse "--devices and '--nproc N' hide GPUs from the test" "Give the container the GPUs that it is to use (--gpus), or write --nproc=N"
fi
if [ "$visible" -gt "$used" ]; then
  refuse "$visible GPUs are visible and $used would be tested" "Start a process for each, or give the container no more GPUs (--gpus)"
fi
exec gpuproof validate "${processes[@]}" "$@"
