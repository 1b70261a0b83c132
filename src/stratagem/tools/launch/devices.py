"""`stratagem devices`: the devices that JAX finds on this machine, under our names."""

import json

import click
from rich.table import Table

from stratagem.tools.launch.wide_console import wide_console


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def devices(as_json: bool) -> None:
    """List the devices of this machine."""
    from stratagem.devices import list_devices

    found = list_devices()
    if as_json:
        click.echo(
            json.dumps([{"name": each.name, "description": each.description} for each in found], indent=2)
        )
        return
    table = Table("device", "description")
    for each in found:
        table.add_row(each.name, each.description)
    wide_console().print(table)
