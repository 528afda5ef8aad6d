"""The file `lost_messages` in the root holds warnings of lost messages that no caller has got.

Recovery removes the proof of a loss when it cuts the queues. If the process ends before the opening
can warn its caller, the next opening does. 4.9.3 ignores the file.
"""

from __future__ import annotations

from pyrocketstore.system.env import Env

__all__ = ["LOST_MESSAGES", "LossNotices"]

#: The name of the file.
LOST_MESSAGES = "lost_messages"
#: Bytes that are read of it: more than a few openings write.
_SIZE_MAX = 1 << 16


class LossNotices:
    """The file `lost_messages` in the directory `root`: one warning a line.

    Raises StoreIOError. Threads: one at a time.
    """

    def __init__(self, env: Env, root: str) -> None:
        self._env = env
        self.path = f"{root}/{LOST_MESSAGES}"

    def read(self) -> list[str]:
        """Return the warnings, oldest first."""
        data = self._env.read_part(self.path, 0, _SIZE_MAX)
        lines = data.decode("utf-8", "surrogateescape").split("\n")
        return list(dict.fromkeys(line for line in lines if line))

    def write(self, texts: list[str]) -> None:
        """Replace the warnings. Durability: on return; a crash leaves the old or the new ones."""
        lines = [text + "\n" for text in texts]
        self._env.write_file(self.path, "".join(lines).encode("utf-8", "surrogateescape"))

    def forget(self, texts: list[str]) -> None:
        """Drop some warnings, and the file with its last one. Durability: as `write`."""
        before = self.read()
        left = [text for text in before if text not in texts]
        if left and left != before:
            self.write(left)
        elif before and not left:
            self._env.remove(self.path)
