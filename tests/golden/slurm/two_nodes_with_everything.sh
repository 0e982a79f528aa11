#!/bin/bash
#SBATCH --job-name=gpuproof-run_1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --partition=gpu,big
#SBATCH --account=lab
#SBATCH --qos=high
#SBATCH --reservation=tests
#SBATCH '--constraint=a100&ib'
#SBATCH '--exclude=node[03,07]'
#SBATCH --time=1:30:00
#SBATCH --gres=gpu:a100:8
#SBATCH --cpus-per-task=96
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --output=/shared/quick/run_1/slurm-%j.txt
#SBATCH '--comment=a test'"'"'s job'
#SBATCH --contiguous
folder=/shared/quick/run_1/cases/main/0
exec >> "$folder/launcher-output.txt" 2>&1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=8 PYTHONSAFEPATH=1 GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0
module load cuda
source "$HOME/env"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$head" -o | grep -o ' NodeAddr=[^ ]*' | cut -d = -f 2)
export GPUPROOF_ADDRESS=${address:-$head} GPUPROOF_PORT=25000
while (: < "/dev/tcp/127.0.0.1/$GPUPROOF_PORT") 2> /dev/null; do GPUPROOF_PORT=$((GPUPROOF_PORT + 1)); done
exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=96 --cpu-bind=none --mpi=none --kill-on-bad-exit=1 \
  /venv/bin/python -m gpuproof.worker slurm-task "--folder=$folder" \
  -- /venv/bin/python -m torch.distributed.run --nnodes=2 '--node-rank=$SLURM_NODEID' --nproc-per-node=8 --rdzv-backend=static '--master-addr=$GPUPROOF_ADDRESS' '--master-port=$GPUPROOF_PORT' --log-dir=/dev/null -m gpuproof.worker run '$GPUPROOF_FOLDER/spec.json' '$GPUPROOF_FOLDER' '--parent-pid=$GPUPROOF_PID'
