"""What a workload is, without torch: options, shapes and work in closed form."""
