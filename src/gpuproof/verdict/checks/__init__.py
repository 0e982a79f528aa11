"""Environment checks: pure questions about what hosts reported, with one outcome per host or GPU."""
