"""A process that follows a registry as a program of its own would, and knows nothing of our code.

    python peft_reader.py REGISTRY

Round after round the active model and every model that it has not seen yet must be there in full and as
their manifests say. Each line of input is answered with how many rounds there were, how many models, and how
many of them were active; so is its end, after one more round.
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


class Reader:
    """What was seen so far."""

    def __init__(self, registry: Path) -> None:
        self._registry = registry
        self._rounds = 0
        self._seen: set[str] = set()
        self._active: set[str] = set()

    def look(self) -> None:
        """One round."""
        self._rounds += 1
        pointer = self._registry / "active"
        if self._active or pointer.exists():
            text = pointer.read_text()
            assert text.endswith("\n"), f"half a pointer: {text!r}"
            check(self._registry / "available" / text.strip())
            self._active.add(text.strip())
        available = self._registry / "available"
        for folder in sorted(available.iterdir()) if available.exists() else []:
            if folder.name not in self._seen:
                check(folder)
                self._seen.add(folder.name)

    def tell(self) -> None:
        """The counts so far, in one line."""
        print(self._rounds, len(self._seen), len(self._active), flush=True)


def main(root: str) -> None:
    """Look, and look again."""
    reader = Reader(Path(root))
    print("reading", flush=True)
    while True:
        # A pause that leaves the writer some of a small machine.
        asked = bool(select.select([sys.stdin], [], [], 0.001)[0])
        ends = asked and not sys.stdin.readline()
        # Whatever was there when the input ended is seen in this round.
        reader.look()
        if asked:
            reader.tell()
        if ends:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
