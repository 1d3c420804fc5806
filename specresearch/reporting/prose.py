"""What the page says whatever was measured."""

from pathlib import Path
from typing import Any

import yaml

PROSE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
