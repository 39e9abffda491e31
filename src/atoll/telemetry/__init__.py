"""Telemetry: what Atoll tells its operator."""
