"""Environment checks: pure functions of host reports, with one outcome per host or GPU."""
