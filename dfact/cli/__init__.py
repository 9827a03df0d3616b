"""The command line: commands parse options, call the library and print the results; modules are imported inside the commands."""
