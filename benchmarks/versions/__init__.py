"""Comparisons of this version with an earlier one."""
