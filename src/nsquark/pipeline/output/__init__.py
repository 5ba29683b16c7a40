"""Where rows go: files, tables, topics."""
