"""Atoll as it will be: the next version of the protocol, with which a list of terminals came. Only tests start it, as

python tests/system/later.py serve ...      the server
python -I tests/system/later.py FD          the nursery of such a server
"""

from __future__ import annotations

import sys

from atoll.protocol import versions


def serve() -> None:
    from atoll.cli.main import main
    from atoll.engine.native.engine import NativeEngine

    options = NativeEngine.__init__.__kwdefaults__
    assert options and "nursery" in options
    options["nursery"] = (__file__,)
    main()


def make_sandboxes() -> None:
    from atoll.engine.native import nursery

    nursery.main()


if __name__ == "__main__":
    versions.PROTOCOL_VERSION += 1  # before anybody asks for it
    versions.SINCE["list_terminals"] = versions.PROTOCOL_VERSION
    if sys.argv[1] == "serve":
        serve()
    else:
        make_sandboxes()
