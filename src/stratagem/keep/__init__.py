"""Consistent states of a run on disk, as shard files and a manifest, which outlive its processes.

A map, from the outside in:

    stored_snapshots   all the snapshots of a run: finishing, finding, reading and removing them
    manifest           what a snapshot holds and where; written last, it makes the snapshot valid
    shard_files        files of named arrays, written by one process each
    records            records of shard files and their arrays, in plain values that travel
    safetensors        the head of a file in the safetensors format
    checked_json       JSON from outside, checked
    disk               the names of files, and files that appear whole or not at all
"""

from stratagem.keep.manifest import Manifest, TensorEntry, TensorPiece
from stratagem.keep.records import ShardRecord, StoredArray
from stratagem.keep.shard_files import map_file, read_shard, verify_shard, write_file, write_shard
from stratagem.keep.stored_snapshots import Snapshots, StoredSnapshot

__all__ = [
    "Manifest",
    "ShardRecord",
    "Snapshots",
    "StoredArray",
    "StoredSnapshot",
    "TensorEntry",
    "TensorPiece",
    "map_file",
    "read_shard",
    "verify_shard",
    "write_file",
    "write_shard",
]
