"""An adapter's directory, in either layout, as what an import needs of it.

Small files are read once and used from memory; the tensors' file stays open and is never looked up again. So
whatever somebody swaps meanwhile, what is checked and what is imported are the same bytes.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.peft.adapter_config import parse_hf_config, parse_lora_json, render_lora_json
from ticket_agent.peft.adapter_layout import METRICS_FILE, Layout, recognise
from ticket_agent.peft.errors import PeftIoError
from ticket_agent.peft.limits import MAX_ADAPTER_BYTES, MAX_LORA_BYTES, MAX_METRICS_BYTES
from ticket_agent.peft.lora import summarise
from ticket_agent.peft.safetensors_header import read_header, reader_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.adapter_config import AdapterConfig
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.lora import LoraSummary
    from ticket_agent.peft.opened import OpenedFile

__all__ = ["AdapterSource", "check_tensors", "open_adapter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSource:
    """An adapter that can be imported, as far as its small files and its names tell.

    Attributes:
        layout: whose names the files have.
        tensors: the tensors' file, open; :func:`check_tensors` looks into it.
        config: what the configuration's file says.
        config_sha256: digest of that file as it is: of ``lora.json`` or ``adapter_config.json``.
        lora: the ``lora.json`` of the model: that file itself, or what says the same as the other one.
        metrics: content of ``metrics.json``, or None when there is none.
    """

    layout: Layout
    tensors: OpenedFile
    config: AdapterConfig
    config_sha256: str
    lora: bytes
    metrics: bytes | None


@contextmanager
def open_adapter(adapters: Directory, ref: str) -> Iterator[AdapterSource]:
    """Open an adapter's directory for the body.

    Raises:
        AbsentError: there is none.
        ArtifactRefusedError: the directory's names, or the configuration, are not those of one LoRA adapter.
        FileRefusedError: the directory or a file is a link, no directory or regular file, or too large.
        PeftIoError: the system failed.
    """
    with adapters.open_dir(ref) as folder:
        names = folder.names()
        layout = recognise(names, what=folder.label)
        data = folder.read_file(layout.config, max_bytes=MAX_LORA_BYTES)
        config = parse_lora_json(data) if layout is Layout.NATIVE else parse_hf_config(data)
        metrics = None
        if METRICS_FILE in names:
            metrics = folder.read_file(METRICS_FILE, max_bytes=MAX_METRICS_BYTES)
        with folder.open_file(layout.adapter, max_bytes=MAX_ADAPTER_BYTES) as tensors:
            yield AdapterSource(
                layout=layout,
                tensors=tensors,
                config=config,
                config_sha256=hashlib.sha256(data).hexdigest(),
                lora=data if layout is Layout.NATIVE else render_lora_json(config),
                metrics=metrics,
            )


def check_tensors(file: OpenedFile, source: AdapterSource) -> LoraSummary:
    """Check that a file holds a complete LoRA adapter, and the one that the configuration describes.

    Args:
        file: the tensors, of the source or a copy of them.
        source: the adapter that they belong to.

    Raises:
        ArtifactRefusedError: it does not.
        PeftIoError: reading failed.
    """
    what = source.layout.adapter
    try:
        header = read_header(reader_of(file.fd), file.size, what=what)
    except OSError as error:
        raise PeftIoError(f"reading {file.label}", error) from error
    return summarise(header, source.config, what=what)
