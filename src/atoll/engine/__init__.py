"""Engines: how sandboxes are made and ended. `base` is the protocol; each engine is a folder."""
