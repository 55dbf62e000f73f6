"""A hive's namespace as a directory: mounted through FUSE, or plain files for a laboratory."""
