"""The daemon: admission, dispatch, observation and publication around one journal."""
