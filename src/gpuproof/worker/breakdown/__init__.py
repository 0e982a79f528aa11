"""Step breakdown after the window: phases of a step, and communication measured in three ways."""
