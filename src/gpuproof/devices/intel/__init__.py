"""Intel GPUs, read from the files of the xe and i915 drivers."""
