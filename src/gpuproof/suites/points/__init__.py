"""Code for several recipes in one run, shared by sweeps, searches and the load suite."""
