"""Kubernetes: each launch is an Indexed Job, a JobSet or a Kubeflow job, removed when done."""
