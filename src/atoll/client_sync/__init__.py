"""The SDK, blocking. Made from `atoll.client`: edit there, then `make sync`."""
