"""The agent: what runs inside a sandbox, as its PID 1. It trusts nobody but the host and bounds everything it keeps."""
