"""The command `translution`, or one line about what it lacks."""


def main() -> None:
    """Run the command; its packages come with an extra of this one."""
    try:
        from translution_runs import command
    except ModuleNotFoundError as error:
        raise SystemExit(f"translution needs the package {error.name}: "
                         "pip install 'translution-book[experiments]'") from None
    command.main()


if __name__ == "__main__":
    main()
