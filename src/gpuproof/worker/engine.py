"""The engine: warm up, time every step, stop, and say why it stopped."""
