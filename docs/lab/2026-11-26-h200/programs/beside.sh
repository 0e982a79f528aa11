# monitor exec beside nvidia-smi, each at 200 ms; the argument is the folder that holds programs/
mkdir -p beside; nvidia-smi --query-gpu=timestamp,index,utilization.gpu,utilization.memory,memory.used,power.draw.instant,power.draw.average,power.draw,temperature.gpu,temperature.memory,clocks.sm,clocks.mem,clocks_event_reasons.active,pcie.link.gen.gpucurrent,pcie.link.width.current --format=csv -lms 200 > beside/smi.csv & P=$!
gpuproof monitor exec --output-dir beside --config-name burn --generate-graphs -- python3 $1/programs/burn.py; r=$?
kill $P; exit $r
