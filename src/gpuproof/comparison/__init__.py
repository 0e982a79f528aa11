"""Compare any two sides: conditions, measures, recordings, the winner and the page."""
