"""`python -m pyrocketstore` and the `pyrocketstore` command."""

from __future__ import annotations

import importlib.util
import sys


def main() -> int:
    """Run the command line; the exit code is 0, 1 (failure) or 2 (wrong usage)."""
    missing = [name for name in ("click", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        text = "the command line needs: pip install 'pyrocketstore[cli]'"
        print(f"pyrocketstore: {text} (missing: {', '.join(missing)})", file=sys.stderr)
        return 2
    from pyrocketstore.cli.app import run

    return run()


if __name__ == "__main__":
    sys.exit(main())
