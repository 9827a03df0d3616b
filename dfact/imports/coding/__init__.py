"""Answers as numbers.

rules            what the file and the user say about the answers of an item: its coding
answers          the coding, applied to batches of rows by the tasks of an import
doubtful_codes   codes that may stand for no answer: by label, sign and distance
tick_boxes       a warning of boxes that are ticked or empty
no_answer        labels that say that there is no answer, in several languages
"""
