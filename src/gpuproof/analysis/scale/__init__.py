"""A scaling study in figures: communication, phases, laws, what they predict, what breaks a curve."""
