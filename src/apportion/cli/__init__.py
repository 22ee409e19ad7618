"""The command line: one short file a command; a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from apportion.cli.allocate import allocate_command
from apportion.cli.audit import audit_command
from apportion.cli.audit_layout import visible
from apportion.cli.embedded import embedded_app
from apportion.cli.fit import fit_command
from apportion.cli.flag_names import by_flag
from apportion.cli.leaderboard import leaderboard_command
from apportion.cli.plan import plan_command
from apportion.cli.profile import profile_command
from apportion.cli.simulate import simulate_command
from apportion.cli.sweep import sweep_command
from apportion.cli.train import train_command
from apportion.errors import ApportionError, InvalidInputError


class _Commands(TyperGroup):
    """The group of all commands; typer itself would end a stopped one without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; say so if it is stopped, and name the flag of a mistake."""
        try:
            return super().invoke(ctx)
        except InvalidInputError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            flag_of = {one.name: one.opts[0] for one in getattr(command, "params", ())}
            raise InvalidInputError(by_flag(str(error), flag_of)) from error
        except KeyboardInterrupt:
            print("apportion: stopped.", file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Commands,
    name="apportion",
    help="Where should my rollouts go? Rollout allocation for RL with verifiable rewards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"apportion {version('apportion')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Where should my rollouts go? Rollout allocation for RL with verifiable rewards."""


app.command("allocate")(allocate_command)
app.command("audit")(audit_command)
app.command("fit")(fit_command)
app.command("leaderboard")(leaderboard_command)
app.command("plan")(plan_command)
app.command("profile")(profile_command)
app.command("simulate")(simulate_command)
app.command("sweep")(sweep_command)
app.command("train")(train_command)
app.add_typer(embedded_app, name="embedded")


def main() -> None:
    """Run a command; turn mistakes into a sentence on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever a terminal cannot show is escaped
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except ApportionError as error:
        print(f"apportion: {visible(str(error))}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        _drop_output()
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        print(
            f"apportion: The output cannot be written: {error.strerror}. Free space.",
            file=sys.stderr,
        )
        sys.exit(2)


def _drop_output() -> None:
    """Let what is still buffered go nowhere, or Python would complain about it at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
