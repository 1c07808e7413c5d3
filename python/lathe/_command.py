"""The lathe command as an entry point of the package."""

from __future__ import annotations

import sys

from . import _lathe


def main() -> None:
    if not hasattr(_lathe, "command"):
        raise SystemExit("lathe: wanted a package with the command, got one built with LATHE_TOOLS=OFF")
    raise SystemExit(_lathe.command(["lathe", *sys.argv[1:]]))
