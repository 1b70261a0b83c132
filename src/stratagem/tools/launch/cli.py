"""The `stratagem` command. Each subcommand is imported when it is used, so that help appears at once."""

import sys
from importlib import import_module

import click

from stratagem.errors import ClusterError, LaunchError, StratagemError
from stratagem.tools.launch.tasks import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE

_COMMANDS = {
    "demo": ("demo", "Train on embedded digits, on one device and on a local cluster."),
    "run": ("run", "Run a script on a local cluster."),
    "serve": ("serve", "Serve one task: hold variables and run programs."),
    "devices": ("check", "List the devices of this machine."),
    "convert": ("convert", "Convert data sets: IDX (MNIST) to TFRecord."),
    "plan": ("plan", "Plan how many workers and servers are worthwhile."),
    "status": ("status", "Show the state of every task of a cluster."),
    "bench": ("bench", "Compare the strategies on this machine, and recommend one."),
    "check": ("check", "Check that the strategies train correctly on these devices, and how fast."),
    "emit": ("emit", "Print files that start a cluster elsewhere: compose, k8s, slurm."),
}
"""By command: its module here, which has a function of that name, and its line in the list of commands."""


class _Commands(click.Group):
    """A group that finds commands in the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(import_module(f"stratagem.tools.launch.{module}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


@click.group(cls=_Commands, context_settings={"show_default": True})
@click.version_option(package_name="stratagem")
def stratagem() -> None:
    """Distributed training that anyone can switch on."""


def main() -> None:
    """Run the console script; print Stratagem's own errors as messages, not as tracebacks."""
    try:
        stratagem.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except StratagemError as error:
        click.echo(f"stratagem: {error}", err=True)
        sys.exit(EXIT_USAGE if isinstance(error, LaunchError | ClusterError) else EXIT_FAILED)
