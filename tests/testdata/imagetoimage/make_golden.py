"""Writes golden.safetensors and golden.json: what diffusers' image-to-image pipelines make of a picture, and text-to-image with VAE tiling and with
arguments of SDXL that the reference's runs leave at their defaults, on the tiny pipelines beside this folder, in float32. Each picture of a batch has a generator of its own, with the run's seed + its number.

Needs torch, diffusers 0.42.1, transformers 5.24.0:  python make_golden.py
"""

import json
import pathlib

import diffusers
import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent
SD, XL, FLUX = "StableDiffusionImg2ImgPipeline", "StableDiffusionXLImg2ImgPipeline", "FluxImg2ImgPipeline"
EULER, ANCESTRAL = "EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler"
CAT, BAD = "a photo of a cat", "blurry, low quality"

# name: (folder, class, scheduler or None for the pipeline's own, picture or None, seed, pictures, tiling, arguments)
RUNS = {
    "sd15": ("sd15", SD, None, "picture", 3, 1, False, dict(prompt=CAT, negative_prompt=BAD, strength=0.6, num_inference_steps=6)),
    "sd15-euler-a": ("sd15", SD, ANCESTRAL, "odd", 4, 2, False, dict(prompt=CAT, strength=0.5, num_inference_steps=5)),
    "sd15-heun": ("sd15", SD, "HeunDiscreteScheduler", "picture", 4, 1, False, dict(prompt=CAT, guidance_scale=1.0, num_inference_steps=4)),
    "sd15-tiled": ("sd15", SD, None, "picture", 5, 1, True, dict(prompt=CAT, strength=1.0, num_inference_steps=2)),
    "sd15-text-tiled": ("sd15", "StableDiffusionPipeline", None, None, 6, 2, True, dict(prompt=CAT, height=96, width=64, num_inference_steps=2)),
    "sdxl": ("sdxl", XL, None, "picture", 7, 1, False, dict(prompt=CAT, negative_prompt=BAD, strength=0.7, num_inference_steps=5, guidance_rescale=0.3)),
    "sdxl-sizes": ("sdxl", XL, ANCESTRAL, "odd", 8, 2, False, dict(
        prompt=CAT, num_inference_steps=8, original_size=(128, 96), crops_coords_top_left=(8, 4), negative_original_size=(32, 48), negative_target_size=(80, 88))),
    "sdxl-text-tiled": ("sdxl", "StableDiffusionXLPipeline", None, None, 9, 1, True, dict(prompt=CAT, height=64, width=96, num_inference_steps=2)),
    "sdxl-arguments": ("sdxl", "StableDiffusionXLPipeline", None, None, 13, 1, False, dict(
        prompt=CAT, prompt_2="A cat holding a sign", negative_prompt=BAD, negative_prompt_2="rain", clip_skip=1, guidance_rescale=0.5, height=64, width=64,
        num_inference_steps=3, target_size=(96, 80), negative_original_size=(32, 48), negative_target_size=(80, 88), negative_crops_coords_top_left=(2, 6))),
    "sdxl-config": ("sdxl", "StableDiffusionXLPipeline", None, None, 14, 1, False, dict(
        prompt=CAT, negative_prompt_2="rain", height=64, width=64, num_inference_steps=3, negative_original_size=(32, 48))),
    "sdxl-config-image": ("sdxl", XL, None, "picture", 15, 1, False, dict(prompt=CAT, num_inference_steps=5)),
    "flux": ("flux1-dev", FLUX, None, "picture", 10, 1, False, dict(prompt=CAT, height=64, width=96, num_inference_steps=5, max_sequence_length=48)),
    "flux-batch": ("flux1-dev", FLUX, None, "odd", 11, 2, False, dict(
        prompt=CAT, negative_prompt=BAD, true_cfg_scale=2.0, height=96, width=64, strength=0.55, num_inference_steps=6, max_sequence_length=48)),
    "flux-text-tiled": ("flux1-dev", "FluxPipeline", None, None, 12, 1, True, dict(prompt=CAT, height=64, width=96, num_inference_steps=2, max_sequence_length=48)),
    "flux2-text-tiled": ("tp-flux2", "Flux2KleinPipeline", None, None, 19, 1, True, dict(prompt=CAT, height=64, width=96, num_inference_steps=2, max_sequence_length=48)),
    "z-image-text-tiled": ("z-image", "ZImagePipeline", None, None, 20, 1, True, dict(
        prompt=CAT, guidance_scale=0.0, height=64, width=96, num_inference_steps=2, max_sequence_length=48)),
    # Tiles of these have 256 pixels.
    "qwen-text-tiled": ("tp-qwen", "QwenImagePipeline", None, None, 16, 1, True, dict(
        prompt=CAT, negative_prompt=BAD, true_cfg_scale=3.0, height=288, width=64, num_inference_steps=2, max_sequence_length=48)),
    "wan-text-tiled": ("tp-wan", "WanPipeline", None, None, 17, 1, True, dict(
        prompt=CAT, negative_prompt=BAD, height=32, width=272, num_frames=5, num_inference_steps=2, max_sequence_length=48)),
    "wan22-text-tiled": ("tp-wan", "WanPipeline", None, None, 18, 1, True, dict(
        prompt=CAT, guidance_scale=1.0, height=32, width=288, num_frames=5, num_inference_steps=2, max_sequence_length=48)),
}

# Fields of configs that a run changes: of model_index.json and of the VAE's config.
CHANGES = {
    "sdxl-config": {"model_index.json": {"force_zeros_for_empty_prompt": False}, "vae/config.json": {"latents_mean": [0.5, -0.25, 1.0, 0.1], "latents_std": [1.5, 0.7, 2.0, 1.1]}},
}
CHANGES["sdxl-config-image"] = CHANGES["sdxl-config"]

# A folder with other components, beside which the rest is the named folder's.
OVER = {"wan22-text-tiled": "wan-ti2v"}


def pictures():
    """A smooth picture with noise, and one whose sides are no multiples of 16."""
    rng = np.random.default_rng(2)
    y, x = np.mgrid[0:64, 0:96].astype(np.float64)
    smooth = np.stack([np.sin(x / 9) + np.cos(y / 5), np.sin((x + y) / 13), np.cos(x * y / 700)], -1) * 80 + 128
    picture = np.clip(smooth + rng.normal(0, 12, smooth.shape), 0, 255).astype(np.uint8)
    return {"picture": picture, "odd": picture[:51, 3:80].copy()}


def run(name, given):
    folder, cls, scheduler, picture, seed, count, tiling, call = RUNS[name]
    variant = "fp16" if folder == "sdxl" else ""  # of that one only these files are here
    pipe = getattr(diffusers, cls).from_pretrained(HERE.parent / "tiny" / folder / "model", variant=variant or None, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    if over := OVER.get(name, ""):
        model = HERE.parent / over / "model"
        pipe.transformer = diffusers.WanTransformer3DModel.from_pretrained(model / "transformer", torch_dtype=torch.float32)
        pipe.vae = diffusers.AutoencoderKLWan.from_pretrained(model / "vae", torch_dtype=torch.float32)
        pipe.register_to_config(expand_timesteps=True)
        pipe.vae_scale_factor_spatial = pipe.vae.config.scale_factor_spatial
    changes = CHANGES.get(name, {})
    pipe.register_to_config(**changes.get("model_index.json", {}))
    pipe.vae.register_to_config(**changes.get("vae/config.json", {}))
    if scheduler:
        pipe.scheduler = getattr(diffusers, scheduler).from_config(pipe.scheduler.config)
    if tiling:
        pipe.vae.enable_tiling()
    latents = []

    def seen(_, i, t, kwargs):
        latents.append(kwargs["latents"].clone())
        return {}

    generators = [torch.Generator("cpu").manual_seed(seed + k) for k in range(count)]
    args = dict(call, generator=generators if count > 1 else generators[0], callback_on_step_end=seen)
    args["num_videos_per_prompt" if "num_frames" in call else "num_images_per_prompt"] = count
    if picture:
        args["image"] = Image.fromarray(given[picture])
    if "num_frames" in call:
        images = sum(pipe(**args, output_type="pil").frames, [])
    else:
        images = pipe(**args).images
    info = dict(model=folder, over=over, variant=variant, scheduler=scheduler or "", picture=picture, seed=seed, count=count, tiling=tiling, changes=changes, call=call)
    return info, torch.stack(latents), torch.from_numpy(np.stack([np.array(i) for i in images]))


torch.set_num_threads(1)
given, runs, out = pictures(), {}, {}
for name, picture in given.items():
    out[name] = torch.from_numpy(picture)
for name in RUNS:
    runs[name], out[f"{name}/step_latents"], out[f"{name}/image_u8"] = run(name, given)
save_file({k: v.contiguous() for k, v in out.items()}, HERE / "golden.safetensors")
(HERE / "golden.json").write_text(json.dumps(runs, indent=1) + "\n")
