"""Writes tiling.safetensors: what diffusers' AutoencoderKL makes of a picture and of latents with tiles of 32 pixels, for the autoencoders
of tests/testdata/tiny (random weights, float32). Needs torch and diffusers 0.42.1:  python tiling.py
"""

import pathlib

import torch
from diffusers import AutoencoderKL
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
TINY = HERE.parents[3] / "tests" / "testdata" / "tiny"

torch.set_num_threads(1)
out = {}
with torch.no_grad():
    for name in ("sd15", "flux1-dev"):
        vae = AutoencoderKL.from_pretrained(TINY / name / "model" / "vae", torch_dtype=torch.float32).eval()
        vae.enable_tiling()
        vae.tile_sample_min_size, vae.tile_latent_min_size = 32, 4
        generator = torch.Generator().manual_seed(5)
        # 48 x 72 pixels: two by three tiles of four sizes.
        z = torch.randn(1, vae.config.latent_channels, 6, 9, generator=generator)
        picture = vae.decode(z).sample
        posterior = vae.encode(picture.clamp(-1, 1)).latent_dist
        for key, value in dict(latents=z, sample=picture, mean=posterior.mean, logvar=posterior.logvar).items():
            out[f"{name}/{key}"] = value.contiguous()
save_file(out, HERE / "tiling.safetensors")
