"""File names of reports: digests, because names in a log may be any text.

A separate module because alerts need the names but not the code that draws reports.
"""

from __future__ import annotations

import hashlib
import json


def file_name(cluster: str, topic: str, subscription: str) -> str:
    """The file name of a dispatcher's report, the same for the same dispatcher.

    >>> file_name("standalone", "persistent://public/default/t", "../../s")
    'dde401545fea994c4b04.html'
    """
    identity = json.dumps([cluster, topic, subscription])
    return f"{hashlib.sha256(identity.encode()).hexdigest()[:20]}.html"
