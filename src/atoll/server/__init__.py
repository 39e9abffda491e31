"""The HTTP side: who may come in, what they may ask for, and passing it on."""
