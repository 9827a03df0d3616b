"""expectile"""
