"""Monitoring: metrics of a process, their server for Prometheus, and the lines of its log."""
