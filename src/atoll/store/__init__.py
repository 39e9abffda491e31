"""What is kept in the database of a state directory: sandboxes, what happened to them, and API keys."""
