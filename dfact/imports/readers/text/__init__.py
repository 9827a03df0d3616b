"""Text: delimited tables.

delimited    csv, tsv and txt, plain or compressed
text_files   their bytes, encoding and delimiter
"""
