"""What reports of the benchmark say of cards, as scripts/hardware_table.py writes it."""

CARDS: tuple[str, ...] = ()
STAGES: tuple[tuple[str, str, str, str, int, int], ...] = ()
