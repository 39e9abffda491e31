"""Where sandboxes keep what they write."""
