"""What a fitted model says: tables, files, plots."""
