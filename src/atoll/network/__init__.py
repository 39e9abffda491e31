"""The network of sandboxes: what they may reach, decided and carried out by a gateway, a process of its own."""
