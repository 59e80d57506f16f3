"""Command-line options that stand above the environment."""


def given(**options: object) -> dict[str, object]:
    """Only the options that were given, as overrides for load_settings."""
    return {name: value for name, value in options.items() if value is not None}
