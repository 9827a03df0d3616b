"""Job files: steps that are checked together, run once, resumed after an interruption, estimated, and deployed to Kubernetes.

This package imports nothing of :mod:`dfact.cli`; commands and connections are passed in.

job_file
    parses a TOML job into steps and checks all of them
record
    stores which steps are done, by digests of their settings and inputs
runner
    runs the steps that are not done, and logs them
estimate
    predicts memory and time without running a step
kubernetes
    writes the manifests of a job
"""
