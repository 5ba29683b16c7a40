"""What the user gives: options and arguments, settings of the environment and the file, quantities."""
