"""Real samples, prepared on the control side as raw tensor files: a node needs no data library.

No data is ever replaced by synthetic samples: what is missing is an error that names the expected files.
"""
