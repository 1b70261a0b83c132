"""Data for training: files in, batches out. Names are loaded when first used; nothing here needs JAX."""

from typing import TYPE_CHECKING

from stratagem.lazy import lazily

if TYPE_CHECKING:
    from stratagem.data.batch_pipeline import Pipeline as Pipeline
    from stratagem.data.digits import Digits as Digits
    from stratagem.data.digits import load_digits as load_digits
    from stratagem.data.example_parsing import parse_example as parse_example
    from stratagem.data.example_writing import make_example as make_example
    from stratagem.data.features import FixedLenFeature as FixedLenFeature
    from stratagem.data.features import RawFeature as RawFeature
    from stratagem.data.features import VarLenFeature as VarLenFeature
    from stratagem.data.idx import read_idx as read_idx
    from stratagem.data.pipelines import pipeline as pipeline
    from stratagem.data.ragged import RaggedArray as RaggedArray
    from stratagem.data.record_batch import RecordBatch as RecordBatch
    from stratagem.data.record_index import RecordIndex as RecordIndex
    from stratagem.data.record_index import index_tfrecord as index_tfrecord
    from stratagem.data.sharding import FileShard as FileShard
    from stratagem.data.sharding import shard_files as shard_files
    from stratagem.data.shuffling import shuffle_batch as shuffle_batch
    from stratagem.data.tfrecord_reader import RecordReader as RecordReader
    from stratagem.data.tfrecord_reader import read_tfrecord as read_tfrecord
    from stratagem.data.tfrecord_writer import TFRecordWriter as TFRecordWriter
    from stratagem.data.tfrecord_writer import write_tfrecord as write_tfrecord

# The same list as above, for the interpreter: a test holds the two together.
_HOMES = {
    "Digits": "stratagem.data.digits",
    "FileShard": "stratagem.data.sharding",
    "FixedLenFeature": "stratagem.data.features",
    "Pipeline": "stratagem.data.batch_pipeline",
    "RaggedArray": "stratagem.data.ragged",
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
    "pipeline": "stratagem.data.pipelines",
    "read_idx": "stratagem.data.idx",
    "read_tfrecord": "stratagem.data.tfrecord_reader",
    "shard_files": "stratagem.data.sharding",
    "shuffle_batch": "stratagem.data.shuffling",
    "write_tfrecord": "stratagem.data.tfrecord_writer",
}

if not TYPE_CHECKING:  # a checker shall find wrong names
    __getattr__, __dir__ = lazily(__name__, _HOMES)
