from typing import Any, Final

__test__: Final[dict[str, object]]
__pyx_capi__: Final[dict[str, object]]

def plain_text_of(
    tags: Any, keys: Any, properties: Any, unique: bytes = b"", *, capacity: int = 32767
) -> bytes | None: ...
