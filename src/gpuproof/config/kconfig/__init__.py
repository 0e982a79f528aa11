"""Files as Kconfig writes them: defaults of a training, and the cases of an older test matrix."""
