"""Deployments as on Kubernetes, without a cluster."""
