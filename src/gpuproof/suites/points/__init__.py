"""Several recipes side by side: what sweeps, searches and the load suite share."""
