"""Terminals: programs on a pty, and who looks at them."""
