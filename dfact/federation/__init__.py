"""Fits across sites whose rows never leave: each site and the coordinator run the same solver, and exchange sums of rows alone."""
