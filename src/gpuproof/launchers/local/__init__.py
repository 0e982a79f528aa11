"""Ranks on this machine: those that gpuproof starts, or those of a launcher of the user's."""
