"""The values that the SDK hands to its users, one set for both of its halves."""
