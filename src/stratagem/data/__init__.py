"""Data for training: files in, batches out. Names are loaded when first used; nothing here needs JAX.

A map, from the outside in:

    batch_pipeline                   `pipeline`: batches of files, arrays or any iterable
    batch_source                     options of batches, and the position of a pass over them
    grain_batches, numbered_rows     batches of rows that can be read by number, and their sources
    stream_batches                   batches of any iterable: stacking, reading ahead, shuffling
    tfrecord_reader, tfrecord_writer  TFRecord files
    record_batch, record_index       many records in one buffer; where each record of a file begins
    compression, tfrecord_frames     gzip and zlib; how records stand in a file, and their checksums
    example_parsing, example_writing  `tf.train.Example` to NumPy and back
    example_columns, example_layout  the values of a batch; where they lie in a record
    features, protobuf               the features of an Example; the wire format of protocol buffers
    idx, digits                      IDX files; a small data set that comes with the package
"""

from typing import TYPE_CHECKING

from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.data.batch_pipeline import Pipeline as Pipeline
    from stratagem.data.batch_pipeline import pipeline as pipeline
    from stratagem.data.digits import Digits as Digits
    from stratagem.data.digits import load_digits as load_digits
    from stratagem.data.example_parsing import parse_example as parse_example
    from stratagem.data.example_writing import make_example as make_example
    from stratagem.data.features import FixedLenFeature as FixedLenFeature
    from stratagem.data.features import RaggedArray as RaggedArray
    from stratagem.data.features import RawFeature as RawFeature
    from stratagem.data.features import VarLenFeature as VarLenFeature
    from stratagem.data.idx import read_idx as read_idx
    from stratagem.data.record_batch import RecordBatch as RecordBatch
    from stratagem.data.record_index import RecordIndex as RecordIndex
    from stratagem.data.record_index import index_tfrecord as index_tfrecord
    from stratagem.data.stream_batches import shuffle_batch as shuffle_batch
    from stratagem.data.tfrecord_reader import FileShard as FileShard
    from stratagem.data.tfrecord_reader import RecordReader as RecordReader
    from stratagem.data.tfrecord_reader import read_tfrecord as read_tfrecord
    from stratagem.data.tfrecord_reader import shard_files as shard_files
    from stratagem.data.tfrecord_writer import TFRecordWriter as TFRecordWriter
    from stratagem.data.tfrecord_writer import write_tfrecord as write_tfrecord

# The same list as above, for the interpreter: a test holds the two together.
_HOMES = {
    "Digits": "stratagem.data.digits",
    "FileShard": "stratagem.data.tfrecord_reader",
    "FixedLenFeature": "stratagem.data.features",
    "Pipeline": "stratagem.data.batch_pipeline",
    "RaggedArray": "stratagem.data.features",
    "RawFeature": "stratagem.data.features",
    "RecordBatch": "stratagem.data.record_batch",
    "RecordIndex": "stratagem.data.record_index",
    "RecordReader": "stratagem.data.tfrecord_reader",
    "TFRecordWriter": "stratagem.data.tfrecord_writer",
    "VarLenFeature": "stratagem.data.features",
    "index_tfrecord": "stratagem.data.record_index",
    "load_digits": "stratagem.data.digits",
    "make_example": "stratagem.data.example_writing",
    "parse_example": "stratagem.data.example_parsing",
    "pipeline": "stratagem.data.batch_pipeline",
    "read_idx": "stratagem.data.idx",
    "read_tfrecord": "stratagem.data.tfrecord_reader",
    "shard_files": "stratagem.data.tfrecord_reader",
    "shuffle_batch": "stratagem.data.stream_batches",
    "write_tfrecord": "stratagem.data.tfrecord_writer",
}

if not TYPE_CHECKING:  # a checker shall find wrong names
    __getattr__, __dir__ = lazily(__name__, _HOMES)
