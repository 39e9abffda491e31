"""The verbs of `atoll`, a file for each. To be here is all that makes a file a verb."""
