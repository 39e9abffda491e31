# Generated from client/plumbing/__init__.py by scripts/build_sync_client.py: do not edit, run `make sync`.
"""The plumbing of the SDK: how a call gets to a server, and its answer back."""
