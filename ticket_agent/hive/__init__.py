"""Ways to reach a hive's namespace, and a reference hive for people without one."""
