"""Files of JSON lines: lines joined in every way, then packed, cut and damaged."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, field
from random import Random

import zstandard

from dispatch_core.recording.files import Limits
from tests.fuzz.lines import Content, Line, line

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Document:
    """A file of lines: its text before packing, its bytes, and the limits to read it with.

    ``lines``: the lines of ``text``, empty if its bytes were changed afterwards. ``whole``: the packing is undamaged, so
    that reading gives the text.
    """

    name: str
    content: Content
    text: bytes
    data: bytes
    lines: tuple[Line, ...] = ()
    whole: bool = True
    cut: bool = False
    limits: Limits = field(default_factory=Limits)


def document(rng: Random, content: Content) -> Document:
    """Make a file of lines, plain or packed."""
    made = tuple(line(rng, content, at + 1) for at in range(rng.choice((0, 1, 3, 8, 20))))
    end = rng.choice((b"\n", b"\n", b"\r\n"))
    text = b"".join(made_line.data + (end if rng.random() < 0.98 else b"\n") for made_line in made)
    if made and rng.random() < 0.3:
        text = text.removesuffix(b"\n")
    if rng.random() < 0.1:
        text = BOM + text
    if rng.random() < 0.08:
        text, made = _changed(rng, text), ()
    limits = Limits()
    if rng.random() < 0.1:
        limits, made = Limits(line_bytes=rng.choice((60, 300, 5000)), raw_bytes=rng.choice((10, 60))), ()
    prefix = "messages" if content == "messages" else rng.choice(("events", "trace"))
    pick = rng.random()
    if pick < 0.6:
        return Document(f"{prefix}.jsonl", content, text, text, made, limits=limits)
    cut = rng.random() < 0.25
    ending, packed = (".gz", _gzipped(rng, text, cut)) if pick < 0.8 else (".zst", _zstd(rng, text, cut))
    whole = not cut
    pick = rng.random()
    if cut:
        packed = packed[: rng.randrange(len(packed))]
    elif pick < 0.3:
        packed, whole = _changed(rng, packed), False
    elif pick < 0.35:
        packed, whole = packed + rng.choice((b"x", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\0\0x")), False
    return Document(
        f"{prefix}.jsonl{ending}", content, text, packed, made if whole else (), whole, cut, limits
    )


def _changed(rng: Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 10))):
        at = rng.randrange(len(made) + 1)
        pick = rng.random()
        if pick < 0.5 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif pick < 0.75:
            made[at:at] = rng.randbytes(rng.randrange(5))
        else:
            del made[at : at + rng.randrange(1, 40)]
    return bytes(made)


def _parts(rng: Random, text: bytes, single: bool) -> list[bytes]:
    if single or rng.random() < 0.7 or not text:
        return [text]
    cut = rng.randrange(len(text))
    return [text[:cut], text[cut:]]


def _gzipped(rng: Random, text: bytes, single: bool) -> bytes:
    """Pack by gzip. ``single``: one member and nothing behind it, so that every cut can be noticed."""
    level = rng.choice((0, 1, 6, 9))
    members = []
    for part in _parts(rng, text, single):
        if rng.random() < 0.7:
            members.append(gzip.compress(part, level, mtime=0))
        else:  # flushed in the middle, as by writers whose files are read while they write
            packer = zlib.compressobj(level, wbits=31)
            half = len(part) // 2
            members.append(
                packer.compress(part[:half])
                + packer.flush(zlib.Z_SYNC_FLUSH)
                + packer.compress(part[half:])
                + packer.flush()
            )
    return b"".join(members) + (b"\0" * rng.randrange(600) if rng.random() < 0.1 and not single else b"")


def _zstd(rng: Random, text: bytes, single: bool) -> bytes:
    frames = []
    for part in _parts(rng, text, single):
        packer = zstandard.ZstdCompressor(
            level=rng.choice((-5, 1, 3)),
            write_checksum=rng.random() < 0.5,
            write_content_size=rng.random() < 0.5,
        )
        if rng.random() < 0.7:
            frames.append(packer.compress(part))
        else:
            stream = packer.compressobj()
            half = len(part) // 2
            frames.append(
                stream.compress(part[:half])
                + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
                + stream.compress(part[half:])
                + stream.flush()
            )
        if rng.random() < 0.1 and not single:  # a skippable frame, as parallel packers write
            frames.append(b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd")
    return b"".join(frames)
