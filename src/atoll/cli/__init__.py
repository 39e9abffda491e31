"""The program `atoll`: one verb, one file."""
