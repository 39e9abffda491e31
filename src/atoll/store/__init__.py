"""What is kept: sandboxes, what happened to them, and API keys."""
