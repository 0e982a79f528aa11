"""Real samples, prepared on the control side as raw tensor files: nodes need no data library.

Data is never replaced by synthetic samples: missing data is an error that lists the expected files.
"""
