"""The SDK, blocking: made from `client/`, file for file. Edit there, then `make sync`."""
