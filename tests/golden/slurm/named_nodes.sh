#!/bin/bash
#SBATCH --job-name=gpuproof-run_1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --nodelist=n2,n1
#SBATCH --exclusive
#SBATCH --no-requeue
#SBATCH --output=/shared/quick/run_1/slurm-%j.txt
folder=/shared/quick/run_1/cases/pair/0
exec >> "$folder/launcher-output.txt" 2>&1
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=8 PYTHONSAFEPATH=1
head=n2
address=$(scontrol show node "$head" -o | grep -o ' NodeAddr=[^ ]*' | cut -d = -f 2)
export GPUPROOF_ADDRESS=${address:-$head} GPUPROOF_PORT=25000
while (: < "/dev/tcp/127.0.0.1/$GPUPROOF_PORT") 2> /dev/null; do GPUPROOF_PORT=$((GPUPROOF_PORT + 1)); done
exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=1 \
  /venv/bin/python -m gpuproof.worker slurm-task --nodes=n2,n1 "--folder=$folder" \
  -- /venv/bin/python -m torch.distributed.run --nnodes=2 '--node-rank=$SLURM_NODEID' --nproc-per-node=2 --rdzv-backend=static '--master-addr=$GPUPROOF_ADDRESS' '--master-port=$GPUPROOF_PORT' --log-dir=/dev/null -m gpuproof.worker run '$GPUPROOF_FOLDER/spec.json' '$GPUPROOF_FOLDER' '--parent-pid=$GPUPROOF_PID'
