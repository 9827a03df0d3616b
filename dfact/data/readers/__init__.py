"""File formats: one module for each, imported when a file of its format is opened."""
