"""The store of all that is kept: sandboxes, what happened to them, and API keys."""
