"""Two sides of anything, compared: conditions, measures, recordings, the winner and the page."""
