"""The command line: one short file a command; a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import sys

import typer

from apportion.cli.allocate import allocate_command
from apportion.cli.embedded import embedded_app
from apportion.cli.train import train_command
from apportion.errors import ApportionError

app = typer.Typer(
    name="apportion",
    help="Where should my rollouts go? Rollout allocation for RL with verifiable rewards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("allocate")(allocate_command)
app.command("train")(train_command)
app.add_typer(embedded_app, name="embedded")


def main() -> None:
    """Run a command; turn mistakes into a sentence on standard error and exit code 2."""
    try:
        app()
    except ApportionError as error:
        print(f"apportion: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("apportion: stopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        sys.stderr.close()
        sys.exit(0)
