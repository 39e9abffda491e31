"""Image names as users write them."""

import re

from atoll.protocol.errors import ErrorCode, error, shown

HOST = "host"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?")


def parse_image_name(text: str) -> str:
    """`text` as a name that is also safe as a directory's."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise error(
            ErrorCode.INVALID_IMAGE_NAME,
            f"{shown(text, 200)} is not an image name",
            remedy="Use up to 128 lower-case letters, digits, dots, hyphens and underscores.",
        )
    return text
