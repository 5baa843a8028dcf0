"""The encoding of prompt and picture, what conditions a section, and the arguments of the transformer.

The encodings are Llama's hidden states, CLIP's pooled output and SigLIP's hidden states.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from PIL import Image
from torch import Tensor
from transformers import (
    CLIPTextModel,
    LlamaModel,
    PreTrainedTokenizerBase,
    SiglipImageProcessorPil,
    SiglipVisionModel,
)

from diffusers_helper.conditions.prompts import HEAD_TOKENS, MAX_PROMPT_TOKENS, TEMPLATE
from diffusers_helper.errors import InputError
from diffusers_helper.memory.streaming import replace_forward
from diffusers_helper.sampling.guidance import NUM_TRAIN_TIMESTEPS, CleanLatents, Guidance, GuidedDenoiser

# The index among the hidden states; the last two layers and the final norm are left out.
_HIDDEN_STATE = -3


@dataclass(frozen=True, slots=True)
class TextCondition:
    """One prompt for the transformer: hidden states (1, L, D), without padding, and one vector (1, P)."""

    prompt_embeds: Tensor
    pooled_prompt_embeds: Tensor


def encode_states(encoder: LlamaModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> Tensor:
    """Encode a prompt in HunyuanVideo's template to hidden states (1, L, D) without the template's head.

    FramePack pads the tokens to a fixed length. The encoder's attention is causal, and the transformer cuts
    off the padding at the end, so the result is the same without it.
    """
    tokens = tokenizer(
        TEMPLATE.format(prompt),
        max_length=HEAD_TOKENS + MAX_PROMPT_TOKENS,
        truncation=True,
        return_tensors="pt",
    )
    output = encoder(
        input_ids=_checked_tokens(tokens.input_ids, encoder),
        attention_mask=tokens.attention_mask.to(encoder.device),
        output_hidden_states=True,
        use_cache=False,
    )
    return output.hidden_states[_HIDDEN_STATE][:, HEAD_TOKENS:]


def encode_pooled(encoder: CLIPTextModel, tokenizer: PreTrainedTokenizerBase, prompt: str) -> Tensor:
    """Encode a prompt to CLIP's pooled output (1, P). It is cut off after 77 tokens."""
    tokens = tokenizer(
        prompt,
        padding="max_length",
        max_length=encoder.config.max_position_embeddings,
        truncation=True,
        return_tensors="pt",
    )
    return encoder(_checked_tokens(tokens.input_ids, encoder)).pooler_output


def _checked_tokens(tokens: Tensor, encoder: LlamaModel | CLIPTextModel) -> Tensor:
    """Move tokens to the encoder's device. There, a token outside its vocabulary would end the process."""
    largest_token, vocab_size = int(tokens.max()), int(encoder.config.vocab_size)
    if largest_token >= vocab_size:
        raise InputError(
            f"The text encoder {type(encoder).__name__} knows {vocab_size:,} tokens, but its tokenizer gives "
            f"token {largest_token:,}; expected the tokenizer and the encoder of one model.",
            "Add the model again with matching folders.",
        )
    return tokens.to(encoder.device)


def mix_prompts(prompts: Sequence[tuple[TextCondition, float]]) -> TextCondition:
    """Sum embeddings by their shares, cut or padded with zeros to the last one's length."""
    last = prompts[-1][0]
    if len(prompts) == 1:
        return last
    prompt_embeds = torch.zeros_like(last.prompt_embeds)
    pooled_prompt_embeds = torch.zeros_like(last.pooled_prompt_embeds)
    for prompt, share in prompts:
        length = min(prompt.prompt_embeds.shape[1], prompt_embeds.shape[1])
        prompt_embeds[:, :length] += share * prompt.prompt_embeds[:, :length]
        pooled_prompt_embeds += share * prompt.pooled_prompt_embeds
    return TextCondition(prompt_embeds, pooled_prompt_embeds)


def encode_vision(
    encoder: SiglipVisionModel, processor: SiglipImageProcessorPil, picture: Image.Image
) -> Tensor:
    """Encode a picture to hidden states (1, tokens, D). It is first scaled to the encoder's square."""
    pixels = processor(images=np.asarray(picture), return_tensors="pt").pixel_values
    return encoder(pixels.to(encoder.device, encoder.dtype)).last_hidden_state


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePackCondition(Guidance[TextCondition]):
    image_embeds: Tensor
    guidance: float

    @classmethod
    def restored(cls, captured: Mapping[str, Any]) -> Self:
        prompts = {name: captured[name] for name in ("positive", "negative")}
        texts = {name: text and TextCondition(**text) for name, text in prompts.items()}
        return cls(**{**captured, **texts})


class FramePackDenoiser(GuidedDenoiser[TextCondition]):
    """FramePack's transformer as a denoiser, which computes once what is the same in all steps.

    The text refiner itself sees the time, so it runs in every step. Inputs are compared by identity, so
    nobody may write to them or to the results.
    """

    def __init__(self, transformer: HunyuanVideoFramepackTransformer3DModel, *arguments: Any) -> None:
        super().__init__(transformer, *arguments)
        modules = (
            transformer.rope, transformer.clean_x_embedder, transformer.image_projection,
            transformer.context_embedder.proj_in, transformer.time_text_embed.text_embedder,
        )  # fmt: skip
        self._forwards = [(module, cache(module.forward)) for module in modules if module is not None]

    @contextmanager
    def _reused_constants(self) -> Generator[None]:
        with ExitStack() as stack:
            for module, cached_forward in self._forwards:
                stack.callback(replace_forward(module, cached_forward))
            yield

    def _text_arguments(self, text: TextCondition) -> dict[str, Tensor]:
        prompt_embeds = self._to_network(text.prompt_embeds)
        return {
            "encoder_hidden_states": prompt_embeds,
            "encoder_attention_mask": torch.ones_like(prompt_embeds[..., 0], dtype=torch.bool),  # all tokens
            "pooled_projections": self._to_network(text.pooled_prompt_embeds),
        }

    def _arguments(self, context: CleanLatents) -> dict[str, Any]:
        indices = context.indices
        guidance = self._condition.guidance * NUM_TRAIN_TIMESTEPS
        return {
            "guidance": torch.tensor([guidance], device=self._transformer.device),
            "image_embeds": self._to_network(self._condition.image_embeds),
            "indices_latents": torch.tensor(indices.noisy),
            "latents_clean": self._to_network(torch.cat([context.start, context.history_1x], dim=2)),
            "indices_latents_clean": torch.tensor(indices.clean),
            "latents_history_2x": self._to_network(context.history_2x),
            "indices_latents_history_2x": torch.tensor(indices.history_2x),
            "latents_history_4x": self._to_network(context.history_4x),
            "indices_latents_history_4x": torch.tensor(indices.history_4x),
        }
