"""Architectures by GGUF name; the module of each is imported when a file asks for it."""

ARCHITECTURES: dict[str, str] = {
    "llama": "pydflash.models.llama",
    "qwen3": "pydflash.models.qwen3",
}
