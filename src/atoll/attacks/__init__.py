"""Attacks as data: what hostile code tries from inside, and what should stop it."""
