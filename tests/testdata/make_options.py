"""Writes what diffusers computes for arguments that the runs of the reference set leave at their defaults: options/NAME.json (each run's arguments) and
options/NAME.safetensors (its embeddings, start noise, steps and pictures). The checkpoints are those of the reference set.

    python make_options.py REFERENCE/tiny options

Made with diffusers 0.42.1, transformers 5.24.0, torch on the CPU in float32.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from safetensors.torch import save_file

SHORT = "a red fox"
LONG = "A cat holding a sign that says \"hello world\" in front of a very old castle on a hill, oil painting, highly detailed"

# Each run: what is changed about the checkpoint, and the arguments of the call.
RUNS = {
    "tp-sd3": {
        "no-t5": (
            {"absent": ["text_encoder_3", "tokenizer_3"]},
            dict(prompt=SHORT, negative_prompt="blurry", height=48, width=64, num_inference_steps=2, guidance_scale=3.0, max_sequence_length=20),
        ),
        "texts": (
            {},
            dict(
                prompt=SHORT, prompt_2="watercolor", prompt_3=LONG, negative_prompt="blurry", negative_prompt_2="text", negative_prompt_3="people",
                height=32, width=48, num_inference_steps=2, guidance_scale=4.0, max_sequence_length=24, clip_skip=1, num_images_per_prompt=2,
            ),
        ),
        "dynamic": (
            {"scheduler": {"use_dynamic_shifting": True}, "tiling": True},
            dict(prompt=[SHORT, LONG], height=64, width=96, num_inference_steps=3, guidance_scale=1.0, max_sequence_length=16),
        ),
    },
    "tp-qwen": {
        # Without num_images_per_prompt: diffusers then gives the mask of one prompt to the pictures of another.
        "lengths": (
            {},
            dict(
                prompt=[SHORT, LONG], negative_prompt=["", "overexposed, watermark, text, people, cars"], height=32, width=48, num_inference_steps=2,
                true_cfg_scale=3.0, max_sequence_length=70,
            ),
        ),
    },
}


def run(folder, changes, call, seed):
    absent = {name: None for name in changes.get("absent", [])}
    pipe = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32, **absent)
    pipe.set_progress_bar_config(disable=True)
    if "scheduler" in changes:
        pipe.scheduler = FlowMatchEulerDiscreteScheduler.from_config(pipe.scheduler.config, **changes["scheduler"])
    if changes.get("tiling"):
        pipe.vae.enable_tiling()
    out = {}
    encode, encoded = pipe.encode_prompt, []

    def recorded(*args, **kwargs):
        result = encode(*args, **kwargs)
        encoded.append(result)
        return result

    pipe.encode_prompt = recorded
    steps, outputs = [], []
    step = pipe.scheduler.step

    def recorded_step(model_output, *args, **kwargs):
        result = step(model_output, *args, **kwargs)
        outputs.append(model_output)
        steps.append(result[0])
        return result

    pipe.scheduler.step = recorded_step
    prompts = 1 if isinstance(call["prompt"], str) else len(call["prompt"])
    pictures = prompts * call.get("num_images_per_prompt", 1)
    h, w = call["height"] // 8, call["width"] // 8
    generator = torch.Generator().manual_seed(seed)
    if type(pipe).__name__ == "QwenImagePipeline":
        latents = torch.randn(pictures, (h // 2) * (w // 2), pipe.transformer.config.in_channels, generator=generator)
    else:
        latents = torch.randn(pictures, pipe.transformer.config.in_channels, h, w, generator=generator)
    images = pipe(**call, latents=latents, output_type="np").images
    out["latents"] = latents
    out["step_model_output"], out["step_latents"] = torch.stack(outputs), torch.stack(steps)
    out["image_u8"] = torch.from_numpy((images * 255).round().astype(np.uint8))
    for i, result in enumerate(encoded):
        for k, value in enumerate(result):
            if value is not None:
                out[f"encode_prompt/{i}/{k}"] = value.to(torch.float32)
    return {name: value.detach().contiguous() for name, value in out.items()}


def main():
    reference, folder = map(pathlib.Path, sys.argv[1:])
    folder.mkdir(exist_ok=True)
    for name, runs in RUNS.items():
        tensors = {}
        for seed, (label, (changes, call)) in enumerate(runs.items()):
            for key, value in run(reference / name / "model", changes, call, 100 + seed).items():
                tensors[f"{label}/{key}"] = value
        save_file(tensors, folder / f"{name}.safetensors")
        described = {label: {"changes": changes, "call": call} for label, (changes, call) in runs.items()}
        (folder / f"{name}.json").write_text(json.dumps(described, indent=1) + "\n")


main()
