"""Simulated cards of any size: where a limit on a larger card would be the cause of what is tested."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def card_of(memory, folder):
    """The device file of an H100 with so many bytes, in `folder`."""
    device = json.loads((ROOT / "sim/h100-80g.json").read_text())
    device["total_memory"] = memory
    path = pathlib.Path(folder) / "card.json"
    path.write_text(json.dumps(device))
    return path
