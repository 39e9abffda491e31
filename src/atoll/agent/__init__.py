"""The agent: PID 1 of a sandbox. It trusts nobody but the host and bounds everything it keeps."""
