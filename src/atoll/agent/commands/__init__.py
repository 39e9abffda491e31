"""Programs that run: made, read, ended."""
