"""Sessions: shells that carry over from command to command, and their queues."""
