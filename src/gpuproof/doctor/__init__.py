"""Checks on a machine before measuring: host, networks between hosts, NCCL, plug-ins."""
