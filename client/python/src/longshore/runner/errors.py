"""The runner's one error type."""


class RunnerError(Exception):
    """The user's input cannot be run; the message says what and why, in one line."""
