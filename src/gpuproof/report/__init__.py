"""Reports: one model of a run's results, and the formats it is shown in."""
