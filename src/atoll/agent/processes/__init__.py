"""Background processes and their logs."""
