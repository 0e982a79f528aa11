#!/bin/bash
#SBATCH --job-name=gpuproof-run_1
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --no-requeue
#SBATCH '--output=/a b/100%%/it'"'"'s/slurm-%j.txt'
#SBATCH --array=0-1
folders=(
'/a b/100%/it'"'"'s/0'
'/a b/100%/it'"'"'s/1'
)
folder=${folders[$SLURM_ARRAY_TASK_ID]}
exec >> "$folder/launcher-output.txt" 2>&1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=8 PYTHONSAFEPATH=1
exec srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=1 '--container-image=nvcr.io#nvidia/pytorch:24.07-py3' '--container-mounts=/a b/100%/it'"'"'s:/a b/100%/it'"'"'s,/data:/data:ro' \
  '/opt/$py' '/a b/gpuproof-node.pyz' slurm-task "--folder=$folder" \
  -- '/opt/$$py' '/a b/gpuproof-node.pyz' run '$GPUPROOF_FOLDER/spec.json' '$GPUPROOF_FOLDER' '--parent-pid=$GPUPROOF_PID' \
  -- '/opt/$$py' '/a b/gpuproof-node.pyz' sample '--out=$GPUPROOF_FOLDER/monitor-$GPUPROOF_HOST.jsonl' --interval=0.5 '--parent-pid=$GPUPROOF_PID'
