"""The shared part of every program's command line: flags, log lines, the process."""
