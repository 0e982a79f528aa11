"""Requests under load: their figures, whether a rate meets its bounds, and the rules of LoadGen."""
