"""A process that follows a registry as a program of its own would, and knows nothing of our code.

    python peft_reader.py REGISTRY

Round after round, until its input ends, the active model and every model that it has not seen yet must be
there in full and as their manifests say. The last line tells how many rounds there were and how many models.
"""

from __future__ import annotations

import hashlib
import select
import sys
import tomllib
from pathlib import Path

FILES = {"adapter": "adapter.safetensors", "lora": "lora.json", "metrics": "metrics.json"}


def check(folder: Path) -> None:
    """Fail unless a model is whole."""
    manifest = tomllib.loads((folder / "manifest.toml").read_text())
    assert manifest["model"]["id"] == folder.name, f"{folder.name} says it is {manifest['model']['id']}"
    named = {name: file for name, file in FILES.items() if name in manifest["model"]}
    assert {path.name for path in folder.iterdir()} == {"manifest.toml", *named.values()}, (
        f"{folder.name}: names"
    )
    for name, file in named.items():
        digest = hashlib.sha256((folder / file).read_bytes()).hexdigest()
        assert digest == manifest["hashes"][f"{name}_sha256"], f"{folder.name}/{file}: digest"


def main(root: str) -> None:
    """Look, and look again."""
    registry, seen, rounds, active = Path(root), set[str](), 0, set[str]()
    print("reading", flush=True)
    # A pause that leaves the writer some of a small machine.
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        rounds += 1
        pointer = registry / "active"
        if active or pointer.exists():
            text = pointer.read_text()
            assert text.endswith("\n"), f"half a pointer: {text!r}"
            check(registry / "available" / text.strip())
            active.add(text.strip())
        available = registry / "available"
        for folder in sorted(available.iterdir()) if available.exists() else []:
            if folder.name not in seen:
                check(folder)
                seen.add(folder.name)
    print(rounds, len(seen), len(active), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
