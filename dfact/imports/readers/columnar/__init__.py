"""Columnar files: parquet and Arrow.

parquet   parquet files, and folders of them
arrow     Arrow files and streams, Feather
columns   columns of Arrow as batches, and tables that are held in memory
"""
