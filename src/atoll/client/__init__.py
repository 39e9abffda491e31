"""The SDK, async. `atoll.client_sync` is made from it: edit here, then `make sync`."""
