"""What the command line asks of schedulers: where a run goes, and whether a cluster is fit for it."""
