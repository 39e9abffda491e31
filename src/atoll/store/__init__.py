"""The database of a state directory: sandboxes, what happened to them, and API keys."""
