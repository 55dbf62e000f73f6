"""The hive's TCP console: framing, replies, handshake, and a client that is a namespace."""
