"""Fault injection: processes, hosts, networks and storage."""
