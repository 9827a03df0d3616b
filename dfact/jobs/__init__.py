"""Jobs: check a TOML file of steps, run them, and record what is done."""
