"""The nursery as a program: `python -I -m atoll.engine.native FD`.

asyncio loads OpenSSL if it finds it. No agent speaks TLS, and every fork would carry a megabyte of it along.
"""

import sys

sys.modules["ssl"] = None  # type: ignore[assignment]

from atoll.engine.native.nursery import main  # noqa: E402 (after the line above)

main()
