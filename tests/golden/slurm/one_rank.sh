#!/bin/bash
#SBATCH --job-name=gpuproof-run_1
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --output=/shared/quick/run_1/slurm-%j.txt
folder=/shared/quick/run_1/cases/main/0
exec >> "$folder/launcher-output.txt" 2>&1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=8 PYTHONSAFEPATH=1
exec srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=1 \
  /venv/bin/python -m gpuproof.worker slurm-task "--folder=$folder" \
  -- /venv/bin/python -m gpuproof.worker run '$GPUPROOF_FOLDER/spec.json' '$GPUPROOF_FOLDER' '--parent-pid=$GPUPROOF_PID' \
  -- /venv/bin/python -m gpuproof.worker sample '--out=$GPUPROOF_FOLDER/monitor-$GPUPROOF_HOST.jsonl' --interval=0.5 '--parent-pid=$GPUPROOF_PID'
