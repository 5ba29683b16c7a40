"""`nsquark`, the command for people. `program.py` lists its subcommands; each has a module in commands/."""
