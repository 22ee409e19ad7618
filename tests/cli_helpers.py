"""Calls of the command line in the process of the tests."""

import sys

from apportion.cli import main


def call(monkeypatch, capsys, *arguments):
    """Return the exit code, standard output and standard error of ``apportion ARGUMENTS``."""
    monkeypatch.setattr(sys, "argv", ["apportion", *map(str, arguments)])
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err
