"""Lines of a text file of any size: UTF-8, UTF-16 or Latin-1; plain, gzip or Zstandard."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from apportion.errors import InvalidInputError
from apportion.readers.tally import Tally

_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_NOT_READ = ((rb"BZh[1-9]1AY&SY", "bzip2"), (rb"\xfd7zXZ\x00", "xz"))
_LONGEST_LINE = 2**27
_BLOCK = 2**20
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def head(path: Path, size: int = 2**16) -> bytes:
    """Return the first bytes of a file, unpacked if it is gzip.

    Raises:
        InvalidInputError: it cannot be opened, or is packed otherwise.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(size)
        if start.startswith(_GZIP):
            return zlib.decompressobj(wbits=31).decompress(start, size)
    except zlib.error:
        return b""
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}.") from error
    for magic, tool in _NOT_READ:
        if re.match(magic, start):
            raise InvalidInputError(
                f"{path} is packed with {tool}. Unpack it first: {tool} -dk {path}"
            )
    return start


def is_text(start: bytes) -> bool:
    """Return whether a file that starts so can be text, packed or not."""
    if start.startswith(_ZSTANDARD) or _encoding(start) != "utf-8":
        return True
    return b"\0" not in start


def text_lines(path: Path, tally: Tally) -> Iterator[str]:
    """Yield the lines of a text file with their ends, and note what could not be read.

    Lines that are not UTF-8 are taken as Latin-1. Reading stops where a packed file is torn.
    """
    encoding = _encoding(head(path))
    try:
        if _magic(path).startswith(_ZSTANDARD):
            yield from _zstandard_lines(path)
        elif encoding == "utf-8":
            yield from _byte_lines(path, tally)
        else:
            with io.TextIOWrapper(_opened(path), encoding, errors="replace", newline="\n") as lines:
                yield from lines
    except (OSError, EOFError, zlib.error, UnicodeError):
        tally.add("files", "are torn and were read up to there", path.name)


def text_blocks(path: Path, tally: Tally) -> Iterator[str]:
    """Yield the text of a file in blocks of about a megabyte, for texts without line ends."""
    try:
        if _magic(path).startswith(_ZSTANDARD):
            yield from _zstandard_lines(path)
            return
        decoder = codecs.getincrementaldecoder(_encoding(head(path)))(errors="replace")
        with _opened(path) as file:
            while block := file.read(_BLOCK):
                yield decoder.decode(block)
    except (OSError, EOFError, zlib.error):
        tally.add("files", "are torn and were read up to there", path.name)


def _byte_lines(path: Path, tally: Tally) -> Iterator[str]:
    with _opened(path) as file:
        too_long = False
        while line := file.readline(_LONGEST_LINE):
            rest_of_long = too_long
            too_long = len(line) == _LONGEST_LINE and not line.endswith(b"\n")
            if too_long or rest_of_long:
                if not rest_of_long:
                    tally.seen("lines", path.name, 1)
                    tally.add("lines", "are longer than 128 MB and were left out", path.name)
                continue
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                tally.add("lines", "are not UTF-8 and were read as Latin-1", path.name)
                yield line.decode("latin-1")


def _zstandard_lines(path: Path) -> Iterator[str]:
    import polars as pl

    if not hasattr(pl, "scan_lines"):
        raise InvalidInputError(f"{path} is packed with Zstandard. Unpack it first: zstd -d {path}")
    try:
        for batch in pl.scan_lines(path).collect_batches(chunk_size=2**14, maintain_order=True):
            yield from (f"{line}\n" for line in batch.to_series().to_list())
    except pl.exceptions.PolarsError as error:
        raise EOFError(str(error)) from error


def _opened(path: Path) -> BinaryIO:
    if _magic(path).startswith(_GZIP):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return open(path, "rb")


def _magic(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(4)


def _encoding(start: bytes) -> str:
    for mark, encoding in _BOMS:
        if start.startswith(mark):
            return encoding
    # Text of few languages alone has no NUL in UTF-16: every second byte of ASCII has.
    pair = start[: len(start) // 2 * 2]
    if len(pair) >= 4 and b"\0" in pair:
        if not any(pair[::2]) and all(pair[1::2]):
            return "utf-16-be"
        if not any(pair[1::2]) and all(pair[::2]):
            return "utf-16-le"
    return "utf-8"
