"""What is judged of a machine before anything is measured: host, networks between hosts, NCCL, plug-ins."""
