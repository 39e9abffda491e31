"""What the parts of Atoll say to each other: messages, errors, names. Values only, no I/O."""
