"""What runs in the background, and its logs."""
