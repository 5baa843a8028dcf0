"""A faster form of the VAE's causal convolutions for single images, used in training.

For one frame all three temporal taps see the same picture. The 3D convolution then equals a 2D convolution
with the sum of the taps, which is twice as fast on CPUs. Clips use the plain Conv3d. The weights do not
change, so the saved model is the plain class of diffusers.
"""

import types

import torch
from diffusers.models.autoencoders.autoencoder_kl_hunyuan_video import HunyuanVideoCausalConv3d
from torch import nn
from torch.nn import functional as F


def image_conv(x: torch.Tensor, conv: nn.Conv3d) -> torch.Tensor:
    """Return the causal convolution ``conv`` of one frame ``x`` (B, C, 1, H, W), with replicate padding."""
    flat = x.squeeze(2)
    pad = conv.kernel_size[1] // 2
    if pad:
        flat = F.pad(flat, (pad, pad, pad, pad), mode="replicate")
    return F.conv2d(flat, conv.weight.sum(dim=2), conv.bias, stride=conv.stride[1:]).unsqueeze(2)


def _conv_forward(self: HunyuanVideoCausalConv3d, hidden_states: torch.Tensor) -> torch.Tensor:
    if hidden_states.shape[2] == 1:
        return image_conv(hidden_states, self.conv)
    return self.conv(F.pad(hidden_states, self.time_causal_padding, mode=self.pad_mode))


def install(model: nn.Module) -> nn.Module:
    """Install the fast path for single frames in every causal convolution of ``model``, and return it."""
    for module in model.modules():
        if isinstance(module, HunyuanVideoCausalConv3d):
            module.forward = types.MethodType(_conv_forward, module)
    return model
