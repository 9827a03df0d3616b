"""Linear algebra by passes over row blocks."""
