"""Architectures by GGUF name; the module of each is imported when a file asks for it."""

ARCHITECTURES: dict[str, str] = {
    "llama": "pydflash.models.llama",
    "qwen3": "pydflash.models.qwen3",
    "qwen3moe": "pydflash.models.qwen3moe",
    "qwen35": "pydflash.models.qwen35",
    "qwen35moe": "pydflash.models.qwen35moe",
}
