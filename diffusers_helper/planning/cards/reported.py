"""What reports of the benchmark say of cards, as scripts/hardware_table.py writes it."""

# fmt: off
CARDS: tuple[str, ...] = (
    "NVIDIA H200",
)
# Measured memory as a multiple of the estimate, by card and stage, or the reserve
RATIOS: dict[str, dict[str, float]] = {}
