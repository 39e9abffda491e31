"""Commands: programs started, read and ended."""
