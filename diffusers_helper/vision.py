"""What the transformer knows of the start picture besides its latent: SigLIP's view of it."""

from __future__ import annotations

import numpy as np
from PIL import Image
from torch import Tensor
from transformers import SiglipImageProcessorPil, SiglipVisionModel


def encode_vision(
    encoder: SiglipVisionModel, processor: SiglipImageProcessorPil, picture: Image.Image
) -> Tensor:
    """Hidden states (1, tokens, D) of a picture, which is squashed to the encoder's square."""
    pixels = processor(images=np.asarray(picture), return_tensors="pt").pixel_values
    return encoder(pixels.to(encoder.device, encoder.dtype)).last_hidden_state
