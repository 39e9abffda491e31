"""Images: what a sandbox's root is made of, by name."""
