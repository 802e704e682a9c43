"""What a page holds, as its script reads it."""

import base64
import json
import re
import zlib


def content(text):
    """The object in a page's compressed script element."""
    (packed,) = re.findall(r'<script type="application/zlib;base64"[^>]*>(.*?)</script>', text)
    return json.loads(zlib.decompress(base64.b64decode(packed, validate=True)))
