"""The transformer's forward pass, written for fast training steps.

It computes the same as diffusers' forward pass in another order. GELU is the exact form, which is four times
as fast on a CPU as the tanh form and differs from it by less than bf16 rounds. Patches are embedded by matrix
products, one product gives query, key and value, and RMS norm and rotary positions are one function with a
short backward pass.
"""

import copy
import math

import torch
from diffusers import HunyuanVideoFramepackTransformer3DModel
from torch import nn
from torch.nn import functional as F

EPS = 1e-6


def quick_dtype(device: torch.device | str = "cpu") -> torch.dtype:
    """Return the type in which a device multiplies fastest: bf16 on GPUs and AMX tiles, else fp32."""
    on_gpu = torch.device(device).type != "cpu"
    return torch.bfloat16 if on_gpu or torch.cpu._is_amx_tile_supported() else torch.float32


def patches(x: torch.Tensor, conv: nn.Conv3d) -> torch.Tensor:
    """Embed latents (B, 16, T, h, w) as tokens (B, n, dim) by a convolution whose stride is its kernel."""
    kernel = conv.kernel_size
    missing = [-size % k for size, k in zip(x.shape[2:], kernel, strict=True)]
    if any(missing):
        x = F.pad(x, (0, missing[2], 0, missing[1], 0, missing[0]), mode="replicate")
    for dim, k in zip((2, 4, 6), kernel, strict=True):
        x = x.unflatten(dim, (-1, k))
    x = x.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
    return F.linear(x, conv.weight.flatten(1), conv.bias)


def _swap_pairs(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


class NormAndRotate(torch.autograd.Function):
    """RMS norm of heads (B, n, H, d) times ``weight`` (H, d), then rotation by ``cos`` and ``sin`` (n, 1, d).

    The first of each pair in ``sin`` is negated beforehand, so that no pair needs to be negated here.
    """

    @staticmethod
    def forward(ctx, x, weight, cos, sin):
        exact = torch.promote_types(x.dtype, torch.float32)
        mean = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=exact).square_() / x.shape[-1]
        inverse = (mean + EPS).rsqrt_().to(x.dtype)
        unit = x * inverse
        ctx.save_for_backward(unit, inverse, weight, cos, sin)
        scaled = unit * weight
        return torch.addcmul(scaled * cos, _swap_pairs(scaled), sin)

    @staticmethod
    def backward(ctx, grad):
        unit, inverse, weight, cos, sin = ctx.saved_tensors
        grad = grad * cos + _swap_pairs(grad * sin)
        by_unit = grad * unit
        grad_weight = by_unit.flatten(0, 1).sum(0)
        along = (by_unit * weight).mean(-1, keepdim=True)
        return torch.addcmul(grad * weight, unit, along, value=-1) * inverse, grad_weight, None, None


class Attend(torch.autograd.Function):
    """Attention with query, key and value (B, H, n, d); ``bias`` (B, 1, 1, k) is added for the last k keys.

    Training with two matrix products and an in-place softmax is two to three times faster than with the fused
    kernel.
    """

    @staticmethod
    def forward(ctx, query, key, value, bias):
        shares = query @ key.transpose(-1, -2)
        shares[..., -bias.shape[-1] :] += bias
        torch.softmax(shares, -1, out=shares)
        ctx.save_for_backward(query, key, value, shares)
        return shares @ value

    @staticmethod
    def backward(ctx, grad):
        query, key, value, shares = ctx.saved_tensors
        by_scores = torch._softmax_backward_data(grad @ value.transpose(-1, -2), shares, -1, shares.dtype)
        by_key = by_scores.transpose(-1, -2) @ query
        return by_scores @ key, by_key, shares.transpose(-1, -2) @ grad, None


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Attend by the fused kernel of a GPU, with arguments as ``Attend`` has them.

    The matrix of all shares would take half a gigabyte for each clip of side 256. The kernel wants sizes of
    the heads in multiples of 8, and numbers of keys in multiples of 16.
    """
    count, size = key.shape[2], query.shape[3]
    more, wider = -count % 16, -size % 8
    mask = F.pad(F.pad(bias, (count - bias.shape[-1], 0)), (0, more), value=-1e4)
    query, key, value = (F.pad(t, (0, wider, 0, n)) for t, n in ((query, 0), (key, more), (value, more)))
    mask = mask.expand(*query.shape[:3], -1)
    return F.scaled_dot_product_attention(query, key, value, mask, scale=1.0)[..., :size]


def modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the layer norm of tokens (B, n, dim), scaled and shifted by (B, dim)."""
    return torch.addcmul(shift.unsqueeze(1), F.layer_norm(x, x.shape[-1:], eps=EPS), 1 + scale.unsqueeze(1))


def add_gated(x: torch.Tensor, gate: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """Return tokens (B, n, dim) plus ``update`` times a gate (B, dim)."""
    return torch.addcmul(x, gate.unsqueeze(1), update)


def joined(*layers: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weight and the bias of one layer that replaces several layers with the same input."""
    return torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])


def head_weights(heads: int, query_norm: nn.Module, key_norm: nn.Module) -> torch.Tensor:
    """Return the norms' weights for all heads of query and key (2 * heads, d), with the attention's scale."""
    query = query_norm.weight / math.sqrt(query_norm.weight.shape[0])
    return torch.stack([query, key_norm.weight]).repeat_interleave(heads, 0)


class QuickTransformer(nn.Module):
    """The forward pass of a FramePack transformer in ``dtype``. ``master`` holds the weights in fp32.

    In fp32 the pass computes with the weights of ``master`` itself. In bf16 it has a copy: after the backward
    pass call ``pass_gradients``, and after a step of the optimiser ``refresh``, which copies the weights.
    """

    def __init__(self, master: HunyuanVideoFramepackTransformer3DModel, dtype: torch.dtype) -> None:
        super().__init__()
        self.master = master
        self.dtype = dtype
        self.model = master if dtype == torch.float32 else copy.deepcopy(master).to(dtype)

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights of ``master`` to the model in use."""
        if self.model is not self.master:
            torch._foreach_copy_(list(self.model.parameters()), list(self.master.parameters()))

    @torch.no_grad()
    def pass_gradients(self) -> None:
        """Move the gradients to the parameters of ``master``."""
        if self.model is self.master:
            return
        for own, param in zip(self.model.parameters(), self.master.parameters(), strict=True):
            param.grad = None if own.grad is None else own.grad.float()
            own.grad = None

    def forward(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        encoder_attention_mask: torch.Tensor,
        pooled_projections: torch.Tensor,
        image_embeds: torch.Tensor,
        guidance: torch.Tensor,
        return_dict: bool = False,
        **context: torch.Tensor,
    ) -> tuple[torch.Tensor]:
        """Return the velocity (B, 16, T, h, w). Arguments are as in diffusers; ``context`` is the history."""
        model, low = self.model, self.dtype
        size = hidden_states.shape[2:]
        x, cos, sin = self._latent_tokens(hidden_states, context)
        temb, _ = model.time_text_embed(timestep, pooled_projections.to(low), guidance)
        text = model.context_embedder(encoder_hidden_states.to(low), timestep, encoder_attention_mask)
        picture = model.image_projection(image_embeds.to(low))
        condition = torch.cat([picture, text], dim=1)
        # The condition's positions are not rotated, and padding tokens are masked.
        words = condition.shape[1]
        cos, sin = (F.pad(t, (0, 0, 0, words), value=v).unsqueeze(1) for t, v in ((cos, 1.0), (sin, 0.0)))
        bias = torch.zeros_like(encoder_attention_mask, dtype=low)
        bias = bias.masked_fill_(~encoder_attention_mask, -1e4)[:, None, None]
        rotation = (cos.to(low), sin.to(low))
        swish = F.silu(temb)
        for block in model.transformer_blocks:
            x, condition = self._double_block(block, x, condition, swish, rotation, bias)
        tokens = torch.cat([x, condition], dim=1)
        for block in model.single_transformer_blocks:
            tokens = self._single_block(block, tokens, swish, rotation, bias)
        frames, height, width = size[0], size[1] // 2, size[2] // 2
        made = tokens[:, -words - frames * height * width : -words]
        scale, shift = model.norm_out.linear(swish).chunk(2, dim=1)
        made = model.proj_out(modulate(made, shift, scale))
        made = made.unflatten(1, (frames, height, width)).unflatten(4, (-1, 2, 2))
        return (made.permute(0, 4, 1, 2, 5, 3, 6).flatten(5, 6).flatten(3, 4),)

    def _latent_tokens(self, noisy: torch.Tensor, context: dict[str, torch.Tensor]):
        """Embed the history and the noisy latents, and return also their positions' cosines and sines."""
        model, low = self.model, self.dtype
        embed = model.clean_x_embedder
        parts = (
            (context["latents_history_4x"], embed.proj_4x, context["indices_latents_history_4x"], 4),
            (context["latents_history_2x"], embed.proj_2x, context["indices_latents_history_2x"], 2),
            (context["latents_clean"], embed.proj, context["indices_latents_clean"], 1),
            (noisy, model.x_embedder.proj, context["indices_latents"], 1),
        )
        height, width = noisy.shape[-2:]
        tokens, cosines, sines = [], [], []
        for latents, conv, indices, coarse in parts:
            tokens.append(patches(latents.to(low), conv))
            rotation = model.rope(indices, height, width, noisy.device)
            if coarse > 1:
                rotation = model._pad_rotary_emb(rotation, height // 2, width // 2, (coarse,) * 3)
            cosines.append(rotation[0])
            sines.append(rotation[1])
        sin = torch.cat(sines)
        sin[:, 0::2] *= -1
        return torch.cat(tokens, dim=1), torch.cat(cosines), sin

    @staticmethod
    def _attend(qk: torch.Tensor, value: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Attend with ``qk`` (B, n, 2H, d) to ``value`` (B, n, H, d); ``bias`` is for the last tokens."""
        query, key = qk.transpose(1, 2).chunk(2, dim=1)
        compute = attend if qk.is_cuda else Attend.apply
        return compute(query, key, value.transpose(1, 2), bias).transpose(1, 2).flatten(2)

    def _single_block(self, block: nn.Module, x, swish, rotation, bias) -> torch.Tensor:
        shift, scale, gate = block.norm.linear(swish).chunk(3, dim=1)
        attn, dim = block.attn, x.shape[2]
        weight, offset = joined(attn.to_q, attn.to_k, attn.to_v, block.proj_mlp)
        mixed = F.linear(modulate(x, shift, scale), weight, offset)
        qk, value, inner = mixed.split([2 * dim, dim, mixed.shape[2] - 3 * dim], dim=2)
        weights = head_weights(attn.heads, attn.norm_q, attn.norm_k)
        qk = NormAndRotate.apply(qk.unflatten(2, weights.shape), weights, *rotation)
        seen = self._attend(qk, value.unflatten(2, (attn.heads, -1)), bias)
        return add_gated(x, gate, block.proj_out(torch.cat([seen, F.gelu(inner)], dim=2)))

    def _double_block(self, block: nn.Module, x, condition, swish, rotation, bias):
        attn, count, dim = block.attn, x.shape[1], x.shape[2]
        parts = block.norm1.linear(swish).chunk(6, dim=1), block.norm1_context.linear(swish).chunk(6, dim=1)
        streams = (
            (x, (attn.to_q, attn.to_k, attn.to_v), (attn.norm_q, attn.norm_k)),
            (
                condition,
                (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj),
                (attn.norm_added_q, attn.norm_added_k),
            ),
        )
        places = ([t[:count] for t in rotation], [t[count:] for t in rotation])
        qks, values = [], []
        for (tokens, layers, norms), part, place in zip(streams, parts, places, strict=True):
            mixed = F.linear(modulate(tokens, part[0], part[1]), *joined(*layers))
            weights = head_weights(attn.heads, *norms)
            qks.append(
                NormAndRotate.apply(mixed[..., : 2 * dim].unflatten(2, weights.shape), weights, *place)
            )
            values.append(mixed[..., 2 * dim :].unflatten(2, (attn.heads, -1)))
        seen = self._attend(torch.cat(qks, dim=1), torch.cat(values, dim=1), bias)
        x = add_gated(x, parts[0][2], attn.to_out[0](seen[:, :count]))
        condition = add_gated(condition, parts[1][2], attn.to_add_out(seen[:, count:]))
        return (
            self._feed_forward(block.ff, x, parts[0][3:]),
            self._feed_forward(block.ff_context, condition, parts[1][3:]),
        )

    @staticmethod
    def _feed_forward(layers: nn.Module, x: torch.Tensor, part: tuple[torch.Tensor, ...]) -> torch.Tensor:
        shift, scale, gate = part
        inner = F.gelu(layers.net[0].proj(modulate(x, shift, scale)))
        return add_gated(x, gate, layers.net[2](inner))
