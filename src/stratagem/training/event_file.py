"""TensorBoard's event files: records of protocol buffers, each in the file when the call that wrote it returns.

tensorboardX brings the messages. Its own writer hands each event through a queue to a thread, does not wait for
that thread in `flush`, and overwrites the file of another writer that began in the same second.
"""

import itertools
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratagem.data.framing import framed
from stratagem.errors import KeepError, MissingExtra
from stratagem.training.histograms import Histogram

if TYPE_CHECKING:
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

_log = logging.getLogger("stratagem")
_numbers = itertools.count()


class EventFile:
    """One new event file, which grows by whole events.

    Args:
        directory: Where to write it; made if it is not there.
        resumed_at: TensorBoard forgets what other files of the directory have from this step on.

    Raises:
        MissingExtra: tensorboardX is not installed.
        KeepError: The file cannot be written.
    """

    def __init__(self, directory: Path, resumed_at: int | None = None) -> None:
        try:
            from tensorboardX.proto import event_pb2, summary_pb2
        except ImportError as error:
            raise MissingExtra(
                f"summaries need tensorboardX ({error}); install it: pip install 'stratagem[tensorboard]'"
            ) from error
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self._path = directory / name
        self._lock = threading.Lock()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("xb", buffering=0)
        except OSError as error:
            raise KeepError(
                f"cannot write summaries to {directory}: {error.strerror}; give a directory that can be written"
            ) from error
        self._is_broken = False
        self._write(self._event(file_version="brain.Event:2"))
        if resumed_at is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(self._event(session_log=start, step=resumed_at))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Write a number."""
        self._put(step, tag=name, simple_value=value)

    def histogram(self, name: str, spread: Histogram, step: int) -> None:
        """Write how values are spread."""
        proto = self._messages.HistogramProto(
            min=spread.minimum,
            max=spread.maximum,
            num=sum(spread.counts),
            sum=spread.total,
            sum_squares=spread.squares,
            bucket_limit=spread.limits,
            bucket=spread.counts,
        )
        self._put(step, tag=name, histo=proto)

    def image(self, name: str, encoded: bytes, shape: tuple[int, ...], step: int) -> None:
        """Write a PNG of this height, width and number of channels."""
        height, width, channels = shape
        image = self._summary.Image(
            height=height, width=width, colorspace=channels, encoded_image_string=encoded
        )
        self._put(step, tag=name, image=image)

    def text(self, name: str, text: str, step: int) -> None:
        """Write a text, which TensorBoard reads as Markdown."""
        from tensorboardX.proto import tensor_pb2, tensor_shape_pb2, types_pb2

        plugin = self._messages.SummaryMetadata.PluginData(plugin_name="text")
        shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
        tensor = tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING, string_val=[text.encode()], tensor_shape=shape
        )
        metadata = self._messages.SummaryMetadata(plugin_data=plugin)
        self._put(step, tag=name, metadata=metadata, tensor=tensor)

    def flush(self) -> None:
        """Wait until the disk has it."""
        with self._lock:
            if not self._file.closed and not self._is_broken:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    @property
    def _messages(self) -> Any:
        from tensorboardX.proto import summary_pb2

        return summary_pb2

    def _put(self, step: int, **value: Any) -> None:
        summary: Summary = self._summary(value=[self._summary.Value(**value)])
        self._write(self._event(summary=summary, step=step))

    def _write(self, event: "Event") -> None:
        event.wall_time = time.time()
        record = framed([event.SerializeToString()])
        with self._lock:
            if self._file.closed:
                raise KeepError(f"{self._path} has been closed; write summaries before `close`")
            try:
                while record and not self._is_broken:
                    record = record[self._file.write(record) :]
            except OSError as error:  # a full disk shall not end the training
                self._is_broken = True
                _log.warning("the summaries in %s end here: %s", self._path, error.strerror)
