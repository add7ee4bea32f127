"""The documents keep up with the code."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_architecture_mentions_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    packages = [p.parent.name for p in (ROOT / "src" / "pydflash").glob("*/__init__.py")]
    assert packages
    assert [p for p in packages if f"`{p}`" not in text] == []
