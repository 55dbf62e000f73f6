"""Metrics as a Prometheus server reads them: the text is parsed by the library's own parser."""

from __future__ import annotations

import time
import urllib.request
from typing import TYPE_CHECKING

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client.core import CollectorRegistry

PREFIX = "ticket_agent_"
PATIENCE_S = 100.0


class Scrape:
    """One scrape; samples are asked for without the common prefix."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in self.families.values():
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self._samples, f"{key} stands there twice"
                self._samples[key] = sample.value

    def get(self, name: str, **labels: str) -> float | None:
        return self._samples.get((PREFIX + name, frozenset(labels.items())))

    def __call__(self, name: str, **labels: str) -> float:
        value = self.get(name, **labels)
        assert value is not None, f"no {name} with {labels}"
        return value

    def all_of_them(self) -> dict[str, float]:
        """Every sample, to show."""
        return {f"{name} {sorted(labels)}": value for (name, labels), value in self._samples.items()}

    def all(self, name: str) -> dict[tuple[str, ...], float]:
        """Every sample of a name by the values of its labels, in the order of the labels' names."""
        return {
            tuple(value for _, value in sorted(labels)): count
            for (sample, labels), count in self._samples.items()
            if sample == PREFIX + name
        }


def scrape_of(registry: CollectorRegistry) -> Scrape:
    return Scrape(generate_latest(registry).decode())


def scrape_until(url: str, fits: Callable[[Scrape], object]) -> Scrape:
    """The first scrape that fits: the picture is taken after a pass, and events come before its end."""
    deadline = time.monotonic() + PATIENCE_S
    while not fits(found := scrape_url(url)):
        assert time.monotonic() < deadline, found.all_of_them()
        time.sleep(0.01)
    return found


def scrape_url(url: str) -> Scrape:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return Scrape(answer.read().decode())
