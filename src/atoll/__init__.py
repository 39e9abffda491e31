"""Atoll: isolated Linux computers, addressed by an id, in which people and AI agents run untrusted code."""

__version__ = "0.1.0"
