"""The one error that is shown without a traceback."""


class TapError(Exception):
    """Something that the user can mend: the message says what was expected, what was found and what to do."""
