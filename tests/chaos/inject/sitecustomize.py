"""Imported by every Python with this folder on its path: a worker of Spark counts its points (``tests.chaos.points``)."""

import os
import sys

if os.environ.get("CHAOS_ROLE") == "worker" and any("daemon" in word for word in sys.orig_argv):
    from tests.chaos.points import from_environment

    points = from_environment()
    if points is not None:
        points.install()
