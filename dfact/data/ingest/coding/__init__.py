"""Answers as numbers.

rules            what the file and the user say about the answers of an item: its coding
answers          the coding, applied to batches of rows by the tasks of an import
forgotten_codes  a warning of codes that stand for missing answers and are not declared
"""
