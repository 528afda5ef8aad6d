"""Prints the folders of the package in their order, each with the folders that it imports.

    python tools/folder_graph.py

A number is a count of imports and cimports. `tests/meta/test_house.py` holds the order.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "meta"))

from test_house import HOUSE, import_graph, room_of


def main() -> None:
    """Print one line for each folder that has modules."""
    graph = import_graph()
    for folder in HOUSE:
        modules = [module for module in graph if room_of(module) == folder]
        found = Counter(room_of(target) for module in modules for target in graph[module])
        imports = [f"{name} {found[name]}" for name in HOUSE if found[name] and name != folder]
        own = f" (among themselves {found[folder]})" if found[folder] else ""
        print(f"{folder}: {len(modules)} modules{own}")
        if imports:
            print(f"    {', '.join(imports)}")


if __name__ == "__main__":
    main()
