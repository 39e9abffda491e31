"""Files, and the processes that work on them so that PID 1 waits for no disk."""
