"""The `stratagem` command."""

import click


@click.group()
def main() -> None:
    """Distributed training that anyone can switch on."""
