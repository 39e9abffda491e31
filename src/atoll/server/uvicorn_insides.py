"""Uvicorn's insides that `connections.py` builds on, and that Uvicorn does not promise to keep.

Nothing else here imports them. What of each is relied on, method by method, is in `tests/unit/test_private_apis.py`,
which says what a new version took away or changed; `pyproject.toml` lets in no version that was not looked at.
"""

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

__all__ = ["STATUS_LINE", "FlowControl", "HttpToolsProtocol", "RequestResponseCycle", "WebSocketsSansIOProtocol"]
