"""From noise to latents: a noise schedule, and samplers that call a model once per step."""

from diffusers_helper.sampling.denoiser import Denoise, OnStep, StepInfo
from diffusers_helper.sampling.euler import sample_euler
from diffusers_helper.sampling.schedule import flow_sigmas, mu_of, shift_of
from diffusers_helper.sampling.unipc import sample_unipc

SAMPLERS = {"unipc": sample_unipc, "euler": sample_euler}

__all__ = [
    "SAMPLERS",
    "Denoise",
    "OnStep",
    "StepInfo",
    "flow_sigmas",
    "mu_of",
    "sample_euler",
    "sample_unipc",
    "shift_of",
]
