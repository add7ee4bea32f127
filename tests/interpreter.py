"""Triton's interpreter under newer versions of numpy, which no longer make a number of a 1-element array."""

from typing import Any


def mend() -> None:
    """Let a scalar of a kernel bound a loop. Idempotent; newer versions of Triton do it by themselves."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor
    if getattr(patch, "is_mended", False):
        return

    def mended(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    mended.is_mended = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = mended
