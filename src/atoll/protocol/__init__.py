"""The protocol between the parts of Atoll: messages, errors, names. Values only, no I/O."""
