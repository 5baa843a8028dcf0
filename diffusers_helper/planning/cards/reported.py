"""What reports of the benchmark say of cards, as scripts/hardware_table.py writes it."""

# fmt: off
CARDS: tuple[str, ...] = (
    "NVIDIA H200",
)
STAGES: tuple[tuple[str, str, str, str, int, int], ...] = ()
