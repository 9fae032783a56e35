"""Detects the format of a checkpoint file, and refuses a file that claims more than it holds.

A few megabytes can ask for gigabytes: a zip with compressed records, a pickle that calls functions, a header with a
false length. Everything is checked here before torch or safetensors reads the file, and before a download is recorded.
This module does not import torch.
"""

from __future__ import annotations

import pickletools
import re
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from profiling.errors import InputError, printable

PYTORCH_ZIP, PYTORCH_LEGACY, SAFETENSORS = "pytorch zip", "pytorch legacy", "safetensors"
_DAMAGED = "is damaged, cut short or not a PyTorch checkpoint: download or copy it again"
_LEGACY_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # a pickled number, after the two bytes of the pickle protocol
_LEGACY_PICKLES = 5  # magic number, protocol, system, content, keys of the storages
_MOST_DIRECTORY = 8 * 2**20  # bytes; a record of a tensor takes about 100
_MOST_OPCODES = 2_000_000  # a tensor takes about 30; an empty set is one of them and takes 216 bytes of memory
_END, _END_64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
#: All that the pickle of a state dict calls. Others that torch.load would call can take long or much memory:
#: `bytearray(10**10)`, nested calls of `_codecs.encode`, the conversion of an expanded tensor.
_CALLED = re.compile(
    r"collections (OrderedDict|Counter)|(builtins|__builtin__) (set|complex)|torch\.nn\.parameter Parameter"
    r"|torch\._utils _rebuild_(tensor(_v[23])?|parameter(_with_state)?|sparse_tensor)"
    r"|torch\.serialization _get_layout|torch\.storage (Unt|T)ypedStorage|torch(\.cuda)? \w*(Storage|Tensor)"
    r"|torch (Size|device|bool|(float|bfloat|int|uint|complex)\d\w*)"
)


def check_format(path: Path, suffix: str) -> str:
    """Return the format of the file at `path`, whose name ends (or will end) with `suffix`.

    Raises InputError, without the file's name, when it is none or when its sizes are false. Raises OSError.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(64)
        if not head:
            raise InputError("is empty (0 bytes): download or copy it again")
        # A safetensors file starts with eight bytes of header length, then the header's JSON object.
        if head[8:9] == b"{" or suffix == ".safetensors":
            if not 2 <= (length := int.from_bytes(head[:8], "little")) <= size - 8:
                raise InputError(
                    f"is damaged, cut short or not a safetensors file{_page(head)}: it has {size} bytes, and its "
                    f"header would have {length}. Download or copy it again"
                )
            return SAFETENSORS
        if head.startswith(b"PK\x03\x04"):
            _check_zip(file, size)
            return PYTORCH_ZIP
        if head[2:].startswith(_LEGACY_MAGIC):
            file.seek(0)
            _check_pickles(file, _LEGACY_PICKLES)
            return PYTORCH_LEGACY
    raise InputError(f"is not a PyTorch checkpoint or a safetensors file{_page(head)}: download or copy it again")


def _page(head: bytes) -> str:
    """Return what the file is instead where it begins like a text: a server's page often has the name of a file."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    kind = {"<": "an HTML or XML page", "{": "JSON text", "[": "JSON text"}.get(text[:1])
    return f" but {kind} ({printable(text, 40)!r})" if kind else ""


def _check_zip(file: BinaryIO, size: int) -> None:
    """Refuse a zip that torch.save does not write: with compressed, doubled or overlapping records."""
    try:
        _check_directory(file, size)
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
        places: dict[str, zipfile.ZipInfo] = {}  # torch finds a record by its name in any case
        for record in records:
            places[record.filename.casefold().partition("/")[2]] = record
        if "constants.pkl" in places:
            raise InputError("is a TorchScript program, not weights: save the module's state_dict() instead")
        if any(record.compress_type != zipfile.ZIP_STORED or record.flag_bits & 1 for record in records):
            raise InputError(
                "is refused: its records are compressed and can be much larger than the file. Save it with torch.save"
            )
        held = sum(max(record.file_size, record.compress_size) for record in records)
        if held > size or len(places) < len(records) or "data.pkl" not in places:
            raise InputError(_DAMAGED)
        file.seek(places["data.pkl"].header_offset + 26)  # lengths of name and extra field; the pickle follows them
        file.seek(sum(struct.unpack("<2H", file.read(4))), 1)
    except (zipfile.BadZipFile, struct.error, OverflowError, ValueError, NotImplementedError):
        raise InputError(_DAMAGED) from None
    _check_pickles(file, 1)


def _check_directory(file: BinaryIO, size: int) -> None:
    """Check that the zip's directory is small, and where torch reads it: zipfile would also find it elsewhere."""
    file.seek(max(0, size - _END_64.size - _LOCATOR.size - _END.size))
    tail = file.read()
    signature, *_, length, offset, _ = _END.unpack(tail[-_END.size :])
    end = size - _END.size
    locator, _, end_64, _ = _LOCATOR.unpack(tail[-_END.size - _LOCATOR.size : -_END.size])
    if locator == b"PK\x06\x07":
        *_, length, offset = _END_64.unpack(tail[: _END_64.size])
        end = end_64 if end_64 == size - len(tail) and tail.startswith(b"PK\x06\x06") else -1
    if signature != b"PK\x05\x06" or offset + length != end or length > _MOST_DIRECTORY:
        raise InputError(_DAMAGED)


def _check_pickles(file: BinaryIO, number: int) -> None:
    """Refuse `number` pickles that begin here if they call more than a state dict needs, or are far too long."""
    opcodes = 0
    try:
        for _ in range(number):
            for opcode, argument, _place in pickletools.genops(file):
                opcodes += 1
                if opcode.name == "GLOBAL" and not _CALLED.fullmatch(str(argument)):
                    requested = printable(str(argument).replace(" ", "."), 100)
                    raise InputError(
                        f"is refused: its pickle requests {requested}, and a pickle with more than plain tensors can "
                        "run code. Save its state dict alone, or as safetensors"
                    )
                if opcodes > _MOST_OPCODES:
                    raise InputError(f"is refused: its pickle has more than {_MOST_OPCODES} operations")
    except InputError:
        raise
    except Exception:  # pickletools raises anything for damaged bytes: ValueError, UnicodeDecodeError, OverflowError, …
        raise InputError(_DAMAGED) from None
