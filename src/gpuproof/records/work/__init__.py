"""Workloads that a launch may run, one file per kind; `records.case` combines them."""
