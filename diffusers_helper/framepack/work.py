"""FramePack's half that works on tensors: its encoders, its conditions, its denoiser and its history.

The encodings are Llama's hidden states, CLIP's pooled output and SigLIP's hidden states. This module is a
`job.work.Work`; `families.framepack.FRAMEPACK` has the numbers.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
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

from cache.replaced import replace_forward
from diffusers_helper.conditions.footage import largest_encodable
from diffusers_helper.conditions.pictures import pictures_of, start_picture_of
from diffusers_helper.conditions.prompts import HEAD_TOKENS, MAX_PROMPT_TOKENS, TEMPLATE
from diffusers_helper.conditions.timeline import prompts_of
from diffusers_helper.errors import InputError
from diffusers_helper.families.packing import HISTORY, HISTORY_1X, Section
from diffusers_helper.files import sha256_of
from diffusers_helper.framepack.history import LatentHistory
from diffusers_helper.framepack.joining import FrameBlender
from diffusers_helper.job.original import Original
from diffusers_helper.job.setup import OpenJob
from diffusers_helper.job.work import Join, Sampler, TextStage, encode_pictures, latent_of
from diffusers_helper.memory.accounting import to_host
from diffusers_helper.picture_names import timed_picture_name
from diffusers_helper.request import END_PICTURE, START_PICTURE, GenerationRequest
from diffusers_helper.sampling import sampler as sampler_named
from diffusers_helper.sampling.guidance import NUM_TRAIN_TIMESTEPS, CleanLatents, Guidance, GuidedDenoiser
from diffusers_helper.sampling.schedule import flow_sigmas, noise_for, shift_of, tokens_of
from diffusers_helper.sampling.step_cache import Blocks

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


denoiser = FramePackDenoiser
condition_type = FramePackCondition
text_stages: Mapping[str, TextStage] = {
    "text": TextStage("text_encoder", "tokenizer", "states", encode_states),
    "text_2": TextStage("text_encoder_2", "tokenizer_2", "pooled", encode_pooled),
}
_TAIL = "tail"


def latents(job: OpenJob) -> dict[str, Tensor]:
    names = [name for name in job.pictures.fitted if name != END_PICTURE or job.request.mode == "inverted"]
    encode_once = cache(partial(latent_of, job))
    encodings = {_encoding_name("start", name): encode_once(job.pictures.first_equal(name)) for name in names}
    if not job.pictures.start:  # noise, in which nothing is to be seen
        encodings["start"] = noise_for(job.root.seed, "start_latent", 0, job.latents_shape(1))
    if job.original:
        encodings[_TAIL] = _tail(job, job.original)
    job.note_vae(0)
    return encodings


def encode_images(job: OpenJob) -> dict[str, Tensor]:
    embeds: dict[str, Tensor] = {}
    by_checksum: dict[str, Tensor] = {}
    for of, picture in _vision_pictures(job).items():
        checksum = sha256_of([str(job.pictures.shape).encode(), picture.tobytes()])
        if checksum not in by_checksum:
            encodings = job.encoded(
                ("image_encoder", "feature_extractor"),
                lambda of=of: {"vision": _vision_states(job, of)},
                picture=checksum,
            )
            by_checksum[checksum] = encodings["vision"]
        embeds[_encoding_name("vision", of)] = by_checksum[checksum]
    return embeds


def _vision_pictures(job: OpenJob) -> dict[str, Image.Image]:
    """List the pictures that the vision encoder sees. A missing start picture is black."""
    height, width = job.pictures.shape
    return {START_PICTURE: Image.new("RGB", (width, height)), **job.pictures.fitted}


def _encoding_name(encoding: str, picture: str) -> str:
    return encoding if picture == START_PICTURE else f"{encoding}_{picture}"


def _tail(job: OpenJob, original: Original) -> Tensor:
    frames = original.context_frames
    num_frames = largest_encodable(len(frames))
    return encode_pictures(job, frames[:num_frames] if original.is_last else frames[-num_frames:], _TAIL)


def _vision_states(job: OpenJob, of: str = START_PICTURE) -> Tensor:
    extractor = job.models.component("feature_extractor")

    def vision(siglip: Any) -> Tensor:
        return to_host(encode_vision(siglip, extractor, _vision_pictures(job)[of]))

    return job.run("vision", vision, of=of)


encoders: Mapping[str, Callable[..., Any]] = {"vision": _vision_states, "vae_encode": latent_of}


def condition(job: OpenJob, section: Section, encodings: Mapping[str, Tensor]) -> FramePackCondition:
    request = job.request_for(section.number)
    conditions = {
        prompt: TextCondition(encodings[f"states_{n}"], encodings[f"pooled_{n}"])
        for n, prompt in enumerate(job.prompts)
    }
    prompts = prompts_of(section.number, request, job.family)
    pictures = [
        (encodings[_encoding_name("vision", name)], share)
        for name, share in pictures_of(section.number, request, job.family)
    ]
    image_embeds = pictures[0][0]
    if len(pictures) > 1:
        image_embeds = torch.stack([share * embeds for embeds, share in pictures]).sum(0)
    return FramePackCondition(
        positive=mix_prompts([(conditions[prompt], share) for prompt, share in prompts]),
        negative=conditions[request.negative] if len(request.prompts) > 1 else None,
        image_embeds=image_embeds,
        guidance=request.guidance,
        cfg=request.cfg,
        cfg_rescale=request.cfg_rescale,
    )


def history(job: OpenJob, encodings: Mapping[str, Tensor]) -> LatentHistory:
    # The weaker the end picture is, the farther it lies from the video, within the reach of the history.
    end_distance = round((1 - job.root.end_strength) * (HISTORY - HISTORY_1X))
    start = encodings["start"]
    end = encodings.get(_encoding_name("start", END_PICTURE))
    prefix = start
    suffix = start[:, :, :0]
    if not job.pictures.start:
        prefix = suffix
    elif job.original and job.original.is_last:
        suffix = encodings[_TAIL]
    elif job.original:
        prefix = encodings[_TAIL]
    section_starts: dict[int, Tensor] = {}
    for section in job.sections:
        request = job.request_for(section.number)
        picture = start_picture_of(section.number, request, job.family)
        if picture != START_PICTURE:
            section_starts[section.number] = encodings[_encoding_name("start", picture)]
    latents_per_second = job.family.fps / job.family.temporal_compression
    references = [
        (round(picture.time * latents_per_second), encodings[_encoding_name("start", timed_picture_name(n))])
        for n, picture in enumerate(job.request.timed_pictures if job.request.one_frame else (), 1)
    ]
    return LatentHistory(
        job.request.mode, start, end, prefix, suffix, end_distance=end_distance,
        section_starts=section_starts, references=references,
    )  # fmt: skip


def joiner(job: OpenJob) -> Join:
    return FrameBlender(job.request.mode, job.original).add


def blocks(network: HunyuanVideoFramepackTransformer3DModel, noise: Tensor) -> Blocks:
    return Blocks(
        [*network.transformer_blocks, *network.single_transformer_blocks],
        tokens_of(noise.shape),
        _modulated_input,
    )


def _modulated_input(block: Any, hidden_states: Tensor, text: Tensor, temb: Tensor, *_: object) -> Tensor:
    """Compute the input of a block's attention, as FramePack's TeaCache compares it."""
    return block.norm1(hidden_states, emb=temb)[0]


def sigmas(job: OpenJob, request: GenerationRequest) -> Tensor:
    default_shift = shift_of(tokens_of(job.latents_shape(job.sections.latent_window_size)))
    return flow_sigmas(request.steps, request.shift or job.models.info.shift or default_shift)


def samplers(job: OpenJob, section: Section, request: GenerationRequest) -> dict[str, Sampler]:
    return {"sample": partial(sampler_named(request.sampler), sigmas=sigmas(job, request))}
