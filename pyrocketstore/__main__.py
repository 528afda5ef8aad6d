"""`python -m pyrocketstore` and the `pyrocketstore` command."""

from __future__ import annotations

import importlib.util
import sys


def main() -> int:
    """Run the command line; the exit code is 0, 1 (failure), 2 (wrong usage) or 130 (Ctrl-C)."""
    missing = [name for name in ("click", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        text = "the command line needs: pip install 'pyrocketstore[cli]'"
        print(f"pyrocketstore: {text} (missing: {', '.join(missing)})", file=sys.stderr)
        return 2
    try:
        from pyrocketstore.cli.app import run

        return run()
    except KeyboardInterrupt:  # while modules are imported, or click is not there yet
        return 130


if __name__ == "__main__":
    sys.exit(main())
