"""How each provider of a Linux host is looked at."""
