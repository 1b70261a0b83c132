"""`stratagem convert`: convert data sets from one format to another."""

from pathlib import Path

import click

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def convert() -> None:
    """Convert data sets from one format to another."""


# An epilog, since \b, which keeps the lines as they are, would be two characters in a raw docstring.
_EXAMPLE = """\b
Example:
  stratagem convert idx-to-tfrecord images-idx3-ubyte.gz labels-idx1-ubyte.gz train.tfrecord
"""


@convert.command("idx-to-tfrecord", epilog=_EXAMPLE)
@click.argument("images", type=_FILE)
@click.argument("labels", type=_FILE)
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--shards", default=1, metavar="N", type=click.IntRange(min=1), help="Number of files to write."
)
@click.option("--compression", type=click.Choice(["gzip", "zlib"]), help="Compress the files.")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
def idx_to_tfrecord(
    images: Path, labels: Path, output: Path, shards: int, compression: str | None, overwrite: bool
) -> None:
    """Write IMAGES and LABELS, two IDX files such as MNIST's, as TFRecord files.

    Each record is a tf.train.Example with `image` (raw bytes) and `label` (an integer). With several shards the
    files are OUTPUT-00000-of-0000N and so on.
    """
    from stratagem.data import idx

    outputs = idx.shard_paths(output, shards)
    existing = [path for path in outputs if path.exists()]
    if existing and not overwrite:
        raise click.UsageError(f"{existing[0]} exists already; give another OUTPUT, or --overwrite")
    count, shape, dtype = idx.idx_to_tfrecord(images, labels, outputs, compression=compression)
    files = outputs[0] if shards == 1 else f"{shards} files, {outputs[0]} to {outputs[-1]}"
    click.echo(f"Wrote {count} records to {files}.")
    click.echo(
        f'Parse with {{"image": RawFeature({shape}, "{dtype}"), "label": FixedLenFeature((), "int64")}}.'
    )
