"""Start, watch and stop processes, for both halves of gpuproof: standard library only."""
