"""Shared memory that neither side can use to harm the other."""

import fcntl
import gc
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from stratagem.errors import LimitExceeded, ProtocolError
from stratagem.runtime.wire.frames import FrameLayout, lay_out, read_layout
from stratagem.runtime.wire.limits import Limits
from stratagem.runtime.wire.shared_memory import IncomingSegment, OutgoingSegment

LIMIT = 1 << 30


def bytes_at(offset: int, nbytes: int) -> FrameLayout:
    return read_layout([["uint8", [nbytes], offset]], Limits(frame_bytes=LIMIT))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def memfd(size: int, seals: int) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def seen_by(incoming: IncomingSegment, outgoing: OutgoingSegment) -> None:
    assert outgoing.descriptor is not None
    incoming.adopt(os.dup(outgoing.descriptor), outgoing.size, LIMIT)


def test_one_side_writes_and_the_other_reads() -> None:
    before = descriptors()
    outgoing, incoming = OutgoingSegment(), IncomingSegment()
    layout = lay_out(
        [(np.dtype(np.float32), (3,)), (np.dtype(np.int8), (0, 2)), (np.dtype(np.uint8), (100,))], True
    )
    outgoing.reserve(layout.end)
    seen_by(incoming, outgoing)
    outgoing.lay_out(layout)
    for value, place in zip((1.5, 0, 7), outgoing.places, strict=True):
        place[...] = value
    incoming.check(layout)
    floats, nothing, view = incoming.tensors(layout)
    assert (floats == 1.5).all()
    assert nothing.shape == (0, 2)
    assert (view == 7).all()
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    number = outgoing.number
    outgoing.reserve(outgoing.size)
    assert outgoing.number == number, "what fits needs no new segment"
    outgoing.reserve(outgoing.size + 1)
    assert outgoing.number > number > 0
    outgoing.close()
    incoming.close()
    assert (view == 7).all(), "a view outlives its segment"
    del floats, nothing, view, place
    assert descriptors() == before


def test_tensors_that_lie_alike_are_the_same_until_there_is_another_segment() -> None:
    outgoing, incoming = OutgoingSegment(), IncomingSegment()
    layout, other = bytes_at(0, 100), bytes_at(64, 100)
    for _ in range(2):
        outgoing.reserve(max(1000, outgoing.size + 1))
        seen_by(incoming, outgoing)
        assert outgoing.layout is not layout, "a new segment is laid out anew"
        outgoing.lay_out(layout)
        assert outgoing.layout is layout
        place, view = outgoing.places[0], incoming.tensors(layout)[0]
        assert incoming.tensors(layout)[0] is view
        place[...] = 3
        assert (view == 3).all()
        assert (incoming.tensors(other)[0] == [3] * 36 + [0] * 64).all()
        assert incoming.tensors(layout)[0] is not view, "one layout is remembered"
    outgoing.close()
    incoming.close()


def test_the_sender_cannot_cut_it_short_nor_the_receiver_write_to_it() -> None:
    outgoing = OutgoingSegment()
    outgoing.reserve(1000)
    assert outgoing.descriptor is not None
    for size in (0, outgoing.size + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(outgoing.descriptor, size)
    with pytest.raises(PermissionError):
        mmap.mmap(outgoing.descriptor, outgoing.size)
    with pytest.raises(PermissionError):
        os.pwrite(outgoing.descriptor, b"x", 0)
    outgoing.reserve(2 * outgoing.size // 3)
    assert outgoing.number > 0, "more of it may still be taken into use"
    outgoing.close()
    assert outgoing.descriptor is None
    assert outgoing.number == 0


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL])
def test_what_could_be_cut_short_is_refused(seals: int) -> None:
    before = descriptors()
    with pytest.raises(ProtocolError, match="seals"):
        IncomingSegment().adopt(memfd(4096, seals), 4096, LIMIT)
    assert descriptors() == before


@pytest.mark.parametrize(("real", "said"), [(4096, 8192), (8192, 4096), (0, 0), (LIMIT + 4096, LIMIT + 4096)])
def test_the_size_must_be_as_said_and_within_limits(real: int, said: int) -> None:
    with pytest.raises(ProtocolError):
        IncomingSegment().adopt(memfd(real, fcntl.F_SEAL_SHRINK), said, LIMIT)


def test_only_memory_is_mapped() -> None:
    before = descriptors()
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        with pytest.raises(ProtocolError):
            IncomingSegment().adopt(os.dup(file.fileno()), 4096, LIMIT)
    for end in os.pipe():
        with pytest.raises(ProtocolError):
            IncomingSegment().adopt(end, 4096, LIMIT)
    assert descriptors() == before


def test_tensors_stay_within() -> None:
    incoming = IncomingSegment()
    with pytest.raises(ProtocolError):
        incoming.check(bytes_at(0, 1))
    incoming.adopt(memfd(4096, fcntl.F_SEAL_SHRINK), 4096, LIMIT)
    incoming.check(bytes_at(4096 - 64, 64))
    for offset, nbytes in ((0, 4097), (4096, 1), (2**62, 1), (64, LIMIT)):
        with pytest.raises(ProtocolError, match="of a segment of 4096"):
            incoming.check(bytes_at(offset, nbytes))


def test_memory_is_taken_only_as_it_is_used_and_a_large_idle_segment_is_dropped() -> None:
    outgoing = OutgoingSegment()
    outgoing.reserve(33 << 20)
    assert outgoing.size == 64 << 20
    assert outgoing.descriptor is not None
    assert os.fstat(outgoing.descriptor).st_blocks * 512 == 33 << 20
    layout, renewed = bytes_at(0, 100_000), []
    for _ in range(100):
        if outgoing.layout is not layout:
            outgoing.reserve(layout.end)
            outgoing.lay_out(layout)
            renewed.append(outgoing.number)
    assert len(set(renewed)) == 2, "replaced once by a small one"
    assert len(renewed) < 100, "which then need not be reserved any more"
    assert outgoing.size < 1 << 20
    outgoing.close()


def test_no_memory_is_an_error_and_leaves_nothing() -> None:
    before = descriptors()
    outgoing = OutgoingSegment()
    with pytest.raises(LimitExceeded, match="no shared memory"):
        outgoing.reserve(1 << 62)
    gc.collect()
    assert descriptors() == before
    assert outgoing.size == 0
