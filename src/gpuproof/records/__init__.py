"""Records and specs: the JSON that crosses the border between the control side and the nodes.

`codec` turns dataclasses into JSON and back, `journal` appends and reads JSON Lines, `case` is what a
worker is asked to do, `run` what it answers.
"""
