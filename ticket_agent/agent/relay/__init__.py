"""Federation relay: version-1 tickets that name another hive go there once, and their results come back."""
