"""Monitoring: figures of a process, their server for Prometheus, and the lines of its log."""
