"""TensorBoard's event files: records of protocol buffers, each in the file when the call that wrote it returns.

tensorboardX defines the messages. Its own writer is not used: it passes events through a queue to a thread, does not
wait for that thread in `flush`, and overwrites the file of another writer that began in the same second.
"""

import itertools
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratagem.data.tfrecord_frames import frame_records
from stratagem.errors import KeepError, MissingExtra
from stratagem.training.summary_values import Histogram, encode_png

_log = logging.getLogger("stratagem")
_numbers = itertools.count()


class EventFile:
    """A new event file, which grows by whole events.

    Args:
        directory: The directory to write it to, which is made if it does not exist.
        resumed_at: TensorBoard drops the values of other files in the directory from this step on.

    Raises:
        MissingExtra: tensorboardX is not installed.
        KeepError: The file cannot be written.
    """

    def __init__(self, directory: Path, resumed_at: int | None = None) -> None:
        try:
            from tensorboardX.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
        except ImportError as error:
            raise MissingExtra(
                f"summaries need tensorboardX ({error}); install it: pip install 'stratagem[tensorboard]'"
            ) from error
        self._events, self._summaries = event_pb2, summary_pb2
        self._tensors, self._shapes, self._types = tensor_pb2, tensor_shape_pb2.TensorShapeProto, types_pb2
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):06d}"
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
        self._write(event_pb2.Event(file_version="brain.Event:2"))
        if resumed_at is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(event_pb2.Event(session_log=start, step=resumed_at))

    def scalar(self, name: str, value: float, step: int) -> None:
        """Write a number."""
        self._put(step, tag=name, simple_value=value)

    def histogram(self, name: str, histogram: Histogram, step: int) -> None:
        """Write a histogram."""
        proto = self._summaries.HistogramProto(
            min=histogram.minimum,
            max=histogram.maximum,
            num=sum(histogram.counts),
            sum=histogram.total,
            sum_squares=histogram.squares,
            bucket_limit=histogram.limits,
            bucket=histogram.counts,
        )
        self._put(step, tag=name, histo=proto)

    def image(self, name: str, image: NDArray[np.uint8], step: int) -> None:
        """Write an 8-bit image of height, width and channels."""
        height, width, channels = image.shape
        proto = self._summaries.Summary.Image(
            height=height, width=width, colorspace=channels, encoded_image_string=encode_png(image)
        )
        self._put(step, tag=name, image=proto)

    def text(self, name: str, text: str, step: int) -> None:
        """Write a text, which TensorBoard shows as Markdown."""
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="text")
        tensor = self._tensors.TensorProto(
            dtype=self._types.DT_STRING,
            string_val=[text.encode()],
            tensor_shape=self._shapes(dim=[self._shapes.Dim(size=1)]),
        )
        metadata = self._summaries.SummaryMetadata(plugin_data=plugin)
        self._put(step, tag=name, metadata=metadata, tensor=tensor)

    def flush(self) -> None:
        """Wait until everything is on disk."""
        with self._lock:
            if not self._file.closed and not self._is_broken:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _put(self, step: int, **value: Any) -> None:
        summary = self._summaries.Summary(value=[self._summaries.Summary.Value(**value)])
        self._write(self._events.Event(summary=summary, step=step))

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        record = frame_records([event.SerializeToString()])
        with self._lock:
            if self._file.closed:
                raise KeepError(f"{self._path} has been closed; write summaries before `close`")
            try:
                while record and not self._is_broken:
                    record = record[self._file.write(record) :]
            except OSError as error:  # a full disk must not end the training
                self._is_broken = True
                _log.warning("the summaries in %s end here: %s", self._path, error.strerror)
