"""Ranks on this machine, started by gpuproof or by the user's own launcher."""
