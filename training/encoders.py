"""The small text and picture encoders of the demo model, used as in the product's pipeline."""

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_framepack import DEFAULT_PROMPT_TEMPLATE
from torch.nn import functional as F
from transformers import AutoTokenizer, CLIPTextModel, LlamaModel, SiglipVisionModel

CROP = int(DEFAULT_PROMPT_TEMPLATE["crop_start"])
VISION_SIDE = 32
# A prompt of the demo has at most five words after the head, and the end token.
TEXT_TOKENS = 8


@dataclass
class TextFeatures:
    """The text features of one prompt: ``tokens`` (8, 64), ``mask`` (8) and ``pooled`` (64)."""

    tokens: torch.Tensor
    mask: torch.Tensor
    pooled: torch.Tensor


class Encoders:
    """The encoders of a model folder, used as in the pipeline, with a cache of prompts.

    Pictures are encoded on ``device``. The few different prompts are encoded on the CPU.
    """

    def __init__(self, folder: Path, device: torch.device | str = "cpu") -> None:
        self.llama_tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
        self.clip_tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer_2")
        self.llama = LlamaModel.from_pretrained(folder / "text_encoder").eval()
        self.clip = CLIPTextModel.from_pretrained(folder / "text_encoder_2").eval()
        self.vision = SiglipVisionModel.from_pretrained(folder / "image_encoder").eval().to(device)
        self._seen: dict[str, TextFeatures] = {}

    @torch.no_grad()
    def text(self, prompt: str) -> TextFeatures:
        """Return the features of a prompt."""
        if prompt not in self._seen:
            filled = DEFAULT_PROMPT_TEMPLATE["template"].format(prompt)
            ids = self.llama_tokenizer(filled, return_tensors="pt").input_ids
            hidden = self.llama(ids, output_hidden_states=True).hidden_states[-3][
                0, CROP : CROP + TEXT_TOKENS
            ]
            tokens = torch.zeros(TEXT_TOKENS, hidden.shape[1])
            tokens[: len(hidden)] = hidden
            mask = torch.arange(TEXT_TOKENS) < len(hidden)
            pooled = self.clip(self.clip_tokenizer(prompt, return_tensors="pt").input_ids).pooler_output[0]
            self._seen[prompt] = TextFeatures(tokens, mask, pooled)
        return self._seen[prompt]

    @torch.no_grad()
    def picture(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the features (B, 4, 64) of pictures (B, 3, H, W) in -1..1."""
        small = F.interpolate(pictures, (VISION_SIDE, VISION_SIDE), mode="bicubic", antialias=True)
        return self.vision(small.clamp(-1, 1)).last_hidden_state
