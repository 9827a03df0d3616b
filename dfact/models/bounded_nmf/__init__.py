"""bounded_nmf"""
