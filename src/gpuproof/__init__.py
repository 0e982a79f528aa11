"""gpuproof: measure GPUs under deep-learning load, explain what was measured, and judge it.

Nothing is imported here: the package is opened by the command line, by workers on nodes that have
only Python and PyTorch, and by monitors that have Python alone.
"""

__version__ = "0.1.0"
