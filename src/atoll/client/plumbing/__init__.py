"""The plumbing of the SDK: how a call gets to a server, and its answer back."""
