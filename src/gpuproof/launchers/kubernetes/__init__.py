"""Kubernetes: each launch is an Indexed Job, a JobSet or a job of Kubeflow's, removed at its end."""
