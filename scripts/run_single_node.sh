#!/usr/bin/env bash
# Train or run a model on this host alone, one rank a device:
#
#   bash scripts/run_single_node.sh N CONFIG [--section.key=value]...
#   bash scripts/run_single_node.sh 4 configs/cifar100_resnet50.yaml --training.precision=bf16
#
# For N over 1, `gpuproof run --nproc N` starts torchrun (static rendezvous on 127.0.0.1, node rank 0) once
# for each launch, so that run.repeats, --resume and gpuproof's exit codes work as ever.
#
#   PYTHON    the Python that has gpuproof       (default: .venv/bin/python of the checkout, else python3)
#   GPUPROOF  the gpuproof command, in its place (no default)
set -euo pipefail

fail() { echo "run_single_node.sh: $1" >&2; exit 2; }

[ $# -ge 2 ] || fail "needs the number of ranks and a config: bash scripts/run_single_node.sh 1 configs/synthetic_resnet50.yaml"
nproc=$1 config=$2
shift 2
[[ $nproc =~ ^[1-9][0-9]{0,3}$ ]] || fail "the number of ranks must be a whole number from 1, not '$nproc'"

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python3
  [ ! -x "$checkout/.venv/bin/python" ] || PYTHON=$checkout/.venv/bin/python
fi
command=("$PYTHON" -P -m gpuproof)
[ -z "${GPUPROOF:-}" ] || command=("$GPUPROOF")
command -v "${command[0]}" >/dev/null || fail "'${command[0]}' is no program; set PYTHON or GPUPROOF (make run installs .venv)"

# A launch around this script is not this one's: gpuproof would wait for its other ranks.
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR MASTER_PORT
exec "${command[@]}" run_single_node.sh "$config" --nproc "$nproc" "$@"
