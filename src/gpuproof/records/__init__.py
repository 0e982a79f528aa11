"""Records and specs: the JSON exchanged between the control side and the nodes.

`codec` converts dataclasses to JSON and back, `journal` appends and reads JSON Lines, `case` is a worker's
input, `run` its output.
"""
