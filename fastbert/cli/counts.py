"""Write numbers of things in messages."""


def counted(number: int, noun: str) -> str:
    """Return "1 word", "1,200 words"; the plural of `noun` ends in s."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
