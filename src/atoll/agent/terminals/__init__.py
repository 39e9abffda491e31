"""Programs on a pty, and who looks at them."""
