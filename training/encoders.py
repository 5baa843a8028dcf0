"""The small text and picture encoders: random Llama and SigLIP features, and a trained CLIP text model.

CLIP's pooled output goes straight into the transformer's modulations. It is therefore trained to distinguish
the requests that a prompt can make.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video_framepack import DEFAULT_PROMPT_TEMPLATE
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoTokenizer,
    CLIPTextConfig,
    CLIPTextModel,
    LlamaConfig,
    LlamaModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers import SiglipImageProcessorPil as ImageProcessor

from training.scenes import COLOURS, MOTIONS, OBJECT_MOTIONS, SHAPES, SPEEDS
from training.words import BEGIN, CONTENT, CROP, END, PAD, SPECIAL, save_tokenizers

LOG = logging.getLogger(__name__)
WIDTH = 64
VISION_SIDE = 32
VOCABULARY_SIZE = len(SPECIAL) + len(CONTENT)
TOKEN_IDS = {
    "pad_token_id": SPECIAL.index(PAD),
    "bos_token_id": SPECIAL.index(BEGIN),
    "eos_token_id": SPECIAL.index(END),
}
CLIP_SEED, LLAMA_SEED, VISION_SEED = 21, 22, 23
# A prompt of the demo has at most five words after the head, and the end token.
TEXT_TOKENS = 8


def build_llama() -> LlamaModel:
    """Return a frozen random Llama of three layers; its hidden state -3 is the output of the first one."""
    torch.manual_seed(LLAMA_SEED)
    model = LlamaModel(
        LlamaConfig(
            vocab_size=VOCABULARY_SIZE, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512,
            **TOKEN_IDS,
        )
    )  # fmt: skip
    nn.init.normal_(model.embed_tokens.weight)
    return model.eval().requires_grad_(False)


def build_clip() -> CLIPTextModel:
    """Return the untrained CLIP text model."""
    torch.manual_seed(CLIP_SEED)
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=VOCABULARY_SIZE, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=77, projection_dim=WIDTH,
            **TOKEN_IDS,
        )
    )  # fmt: skip


def build_vision() -> SiglipVisionModel:
    """Return a frozen random SigLIP for 32-pixel pictures, with four tokens."""
    torch.manual_seed(VISION_SEED)
    config = SiglipVisionConfig(
        hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2, num_attention_heads=4,
        image_size=VISION_SIDE, patch_size=16,
    )  # fmt: skip
    return SiglipVisionModel(config).eval().requires_grad_(False)


def random_words(rng: np.random.Generator) -> tuple[str, list[int]]:
    """Return a random prompt, and its indices of motion, colour, shape and speed.

    The last index of colours and of shapes stands for none.
    """
    motion = int(rng.integers(len(MOTIONS)))
    name = MOTIONS[motion]
    speed = int(rng.integers(len(SPEEDS)))
    colour = int(rng.integers(len(COLOURS) + 1))
    shape = int(rng.integers(len(SHAPES) + 1))
    subject = [*([list(COLOURS)[colour]] if colour < len(COLOURS) else []),
               *([SHAPES[shape]] if shape < len(SHAPES) else [])]  # fmt: skip
    verb = f"moves {name}" if name in OBJECT_MOTIONS[:4] else name
    parts = [" ".join(subject), verb] if rng.random() < 0.9 else [verb, " ".join(subject)]
    parts.insert(int(rng.choice([0, len(parts), len(parts)])), SPEEDS[speed])
    if name == "stays still" and rng.random() < 0.3:
        return "", [motion, len(COLOURS), len(SHAPES), 1]
    return " ".join(parts), [motion, colour, shape, speed]


def train_clip(folder: Path, steps: int = 700) -> float:
    """Train CLIP's pooled output to predict motion, colour, shape and speed; return the accuracy."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer_2")
    model = build_clip()
    rng = np.random.default_rng(CLIP_SEED)
    counts = (len(MOTIONS), len(COLOURS) + 1, len(SHAPES) + 1, len(SPEEDS))
    heads = nn.ModuleList(nn.Linear(WIDTH, count) for count in counts)
    params = [*model.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(params, 2e-3)
    right = 0.0
    for step in range(steps):
        prompts, answers = zip(*(random_words(rng) for _ in range(128)), strict=True)
        pooled = model(**tokenizer(list(prompts), padding=True, return_tensors="pt")).pooler_output
        wanted = torch.tensor(answers).T
        scores = [head(pooled) for head in heads]
        loss = sum(F.cross_entropy(score, want) for score, want in zip(scores, wanted, strict=True))
        optimiser.zero_grad()
        loss.backward()
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1, step / 30, (steps - step) / (0.4 * steps))
        optimiser.step()
        if step >= steps - 20:
            told = [s.argmax(1) == w for s, w in zip(scores, wanted, strict=True)]
            right += float(torch.stack(told).float().mean()) / 20
    LOG.info("CLIP text: %.2f %% of the proxy's answers are correct", 100 * right)
    model.eval().requires_grad_(False).save_pretrained(folder / "text_encoder_2")
    return right


def make_encoders(folder: Path) -> None:
    """Write the tokenizers, the text encoders and the picture encoder into a model folder."""
    save_tokenizers(folder)
    build_llama().save_pretrained(folder / "text_encoder")
    build_vision().save_pretrained(folder / "image_encoder")
    size = {"height": VISION_SIDE, "width": VISION_SIDE}
    ImageProcessor(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=3).save_pretrained(
        folder / "feature_extractor"
    )
    train_clip(folder)


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
            tokens = torch.zeros(TEXT_TOKENS, WIDTH)
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
