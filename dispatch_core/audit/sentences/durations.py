"""Durations in words."""

from __future__ import annotations

from typing import Final

_MS: Final = 1_000
_SECOND: Final = 1_000_000
_MINUTE: Final = 60 * _SECOND


def duration(us: int) -> str:
    """Return a duration of ``us`` microseconds in words, as exact as a reader needs it.

    >>> duration(130), duration(860), duration(2_430), duration(12_400), duration(999_700)
    ('0.13 ms', '0.86 ms', '2.4 ms', '12 ms', '1.00 s')
    >>> duration(2_660_000), duration(95_000_000), duration(1_260_000_000), duration(7_500_000_000)
    ('2.66 s', '95.0 s', '21 min', '2 h 5 min')
    >>> duration(0), duration(-64_000)
    ('0 ms', '-64 ms')
    """
    # each limit is where rounding would show the first value of the next step
    if us < 0:
        return f"-{duration(-us)}"
    if us < 995:
        return f"{us / _MS:.2g} ms"
    if us < 9_950:
        return f"{us / _MS:.1f} ms"
    if us < 999_500:
        return f"{us / _MS:.0f} ms"
    if us < 9_995_000:
        return f"{us / _SECOND:.2f} s"
    if us < 10 * _MINUTE - 50_000:
        return f"{us / _SECOND:.1f} s"
    minutes = round(us / _MINUTE)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
