"""Tests that what is constant in a section is computed once, with the same bits."""

from collections import Counter
from dataclasses import replace

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import Tensor

from diffusers_helper.families.packing import frame_indices
from diffusers_helper.framepack.work import FramePackCondition, FramePackDenoiser, TextCondition
from diffusers_helper.sampling.guidance import CleanLatents, guide


def test_constants_are_computed_once_per_section_with_the_same_bits() -> None:
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(3)
        network = HunyuanVideoFramepackTransformer3DModel(
            num_attention_heads=2, attention_head_dim=16, rope_axes_dim=(4, 6, 6), num_layers=1,
            num_single_layers=1, num_refiner_layers=1, text_embed_dim=16, pooled_projection_dim=16,
            image_proj_dim=16, has_image_proj=True, has_clean_x_embedder=True,
        ).eval()  # fmt: skip
        texts = [TextCondition(torch.randn(1, tokens, 16), torch.randn(1, 16)) for tokens in (5, 7)]
        condition = FramePackCondition(
            positive=texts[0], negative=texts[1], image_embeds=torch.randn(1, 4, 16),
            guidance=10.0, cfg=2.0, cfg_rescale=0.5,
        )  # fmt: skip
        start, *history = (torch.randn(1, 16, count, 8, 8) for count in (1, 1, 2, 16))
        context = CleanLatents(frame_indices("forward"), start, *history)
        noisy = [torch.randn(1, 16, 9, 8, 8) for _ in range(3)]
        sigmas = [torch.tensor(level, dtype=torch.float64) for level in (1.0, 0.7, 0.2)]

        def plain(x: Tensor, sigma: Tensor) -> Tensor:
            """Call the transformer as diffusers' pipeline does, with inputs that it has never seen."""
            v = []
            for text in texts:
                alone = replace(condition, positive=text, negative=None, cfg=1.0, cfg_rescale=0.0)
                denoiser = FramePackDenoiser(network, alone, context)
                v.append((x - denoiser(x, sigma)) / sigma)
            return x - sigma.to(x.dtype) * guide(v[0], v[1], 2.0, 0.5)

        expected = [
            FramePackDenoiser(network, condition, context)(*each) for each in zip(noisy, sigmas, strict=True)
        ]
        assert torch.allclose(expected[1], plain(noisy[1], sigmas[1]), atol=1e-5)
        ran: Counter[str] = Counter()
        parts = {
            "rope": network.rope, "clean": network.clean_x_embedder, "image": network.image_projection,
            "text": network.context_embedder.proj_in, "refiner": network.context_embedder.token_refiner,
            "pooled": network.time_text_embed.text_embedder,
        }  # fmt: skip
        inner = {name: part.forward for name, part in parts.items()}
        for name, part in parts.items():
            part.__dict__["forward"] = lambda *arguments, name=name, **named: (
                ran.update([name]) or inner[name](*arguments, **named)
            )
        denoiser = FramePackDenoiser(network, condition, context)
        results = [denoiser(*each) for each in zip(noisy, sigmas, strict=True)]
    assert all(map(torch.equal, results, expected))
    assert ran == {"rope": 4, "clean": 1, "image": 1, "text": 2, "pooled": 2, "refiner": 6}
