"""Where things lie in the checkout that these tests belong to."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLKIT = ROOT / "toolkit"
DOCS = ROOT / "docs"
ENTRYPOINTS = ROOT / "entrypoints"
