"""What Atoll tells its operator."""
