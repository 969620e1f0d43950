"""Explain from a log what happened to a key, an entry or a consumer (``dispatch-audit explain``).

``subject`` finds what is asked for, ``explanation`` collects its moments and waits, ``tell`` and ``timeline`` make the text.
"""
