"""A command of the user's as a case: started, followed with all that it starts, and ended at its time."""
