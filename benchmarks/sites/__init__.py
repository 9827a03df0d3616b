"""Fits across sites on hosts of their own: bits, what leaves, lost hosts and networks, and costs."""
