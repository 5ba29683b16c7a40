"""The subcommands of `nsquark`: a module each, whose `command` program.py finds by its name."""
