"""Storage: where sandboxes keep what they write."""
