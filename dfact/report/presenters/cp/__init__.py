"""Texts and plots of CP decompositions."""
