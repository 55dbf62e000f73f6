"""Host-side executor of a Cohesix hive: admitted tickets in, digest-stamped results out."""

__version__ = "0.1.0"
