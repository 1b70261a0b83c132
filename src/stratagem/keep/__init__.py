"""What outlives a process: consistent states of a run on disk, as shard files and a manifest.

A map, from the outside in:

    cuts, retention        all the cuts of a run: finding, finishing, removing them
    cut                    one cut: tensors put together from the pieces in its shards
    manifest               what a cut holds and where; written last, it makes the cut valid
    shards, shard_file     files of named arrays, written by one process each
    records, stored        what a shard file is, in plain values that travel
    header, element_types  the safetensors format
    fields                 values that come from outside, checked
    disk, naming           files that appear whole or not at all, and what they are called
"""

from stratagem.keep.cut import Cut
from stratagem.keep.cuts import Cuts
from stratagem.keep.manifest import Manifest, Piece, TensorEntry
from stratagem.keep.records import ShardRecord
from stratagem.keep.shards import map_file, read_shard, verify_shard, write_file, write_shard
from stratagem.keep.stored import StoredArray

__all__ = [
    "Cut",
    "Cuts",
    "Manifest",
    "Piece",
    "ShardRecord",
    "StoredArray",
    "TensorEntry",
    "map_file",
    "read_shard",
    "verify_shard",
    "write_file",
    "write_shard",
]
