"""An hour of chaos: jobs of all models on a cluster over TLS and an object store, while random faults hit every part of it."""
