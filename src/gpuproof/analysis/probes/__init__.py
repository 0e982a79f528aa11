"""What probes found: values of figures and of whom, and which device's results differ from the others'."""
