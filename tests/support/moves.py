"""The order of a job's loads and flushes according to the memory document (docs/amd-memory.md)."""

DOCUMENT = """
    flush worker-start
    flush post-unload/text-enc
    load text_encoder, unload text_encoder, load text_encoder_2, unload text_encoder_2
    flush post-text-encoding
    load vae, unload vae
    flush post-vae-encoding
    load image_encoder, unload image_encoder
    flush post-clip-vision
"""
SECTION = """
    flush post-unload/transformer
    load transformer, unload transformer
    flush post-transformer-unload
    load vae, unload vae
    flush post-vae-decode
"""


def moves(text: str) -> list[str]:
    return [entry.strip() for line in text.splitlines() for entry in line.split(",") if entry.strip()]
