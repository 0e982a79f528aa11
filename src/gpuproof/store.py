"""The run directory: where everything about a run lies, written whole or not at all."""
