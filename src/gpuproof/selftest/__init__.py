"""Plant faults to show that they change the verdict (`gpuproof selftest`)."""
