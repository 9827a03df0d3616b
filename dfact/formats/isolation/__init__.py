"""Parsers of untrusted binary files, which run in child processes with limits of memory, time and files.

parsers    the parent: what it asks of a child, and errors for a child that dies
server     the process that forks the children
messages   what goes through the sockets between them
"""
