"""Batch jobs, a slice: check a TOML file of steps, run them on one machine, under Slurm or on Kubernetes, and record what is done.

A step is a command of the command line. What takes long to import is imported inside the functions, so that a job is checked at once.

    job_file      the steps of a TOML file, and the problems found in it
    runner        the loop over the steps, and the log
    record        which steps are done, and why one has to run again
    estimate      memory and time of a job before it runs
    kubernetes    checks of a job that runs on Kubernetes, and the memory of its pods
    kustomization manifests that run a job on Kubernetes
    run, deploy   the commands
"""
