"""Writes wan-ti2v: a small pipeline in the form of Wan 2.2 TI2V-5B (expand_timesteps, an autoencoder with is_residual and patch_size), which the reference set lacks, and
what diffusers computes with it. Its tokenizer, text encoder and scheduler are those of the reference set's tp-wan.

    python make_wan.py tiny/tp-wan/model wan-ti2v

Made with diffusers 0.42.1, transformers 5.24.0, torch on the CPU in float32; the weights are stored in bfloat16 and computed with in float32.
"""

import copy
import json
import pathlib
import sys

import numpy as np
import torch
from diffusers import AutoencoderKLWan, WanPipeline, WanTransformer3DModel
from safetensors.torch import save_file

# The pipeline takes the height as 64 and makes 9 frames.
CALL = dict(
    prompt="  a photo of an astronaut\triding a horse &amp;amp; a dog", negative_prompt="blurry, low quality", height=80, width=32, num_frames=11,
    num_inference_steps=3, guidance_scale=4.0, max_sequence_length=24,
)


def randomize(model, generator):
    """Norms that are not 1, biases that are not 0, and all of it exact in bfloat16."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "norm" in name and name.endswith(("weight", "gamma")):
            noise = 1 + 0.2 * noise
        elif p.ndim == 1:
            noise = 0.1 * noise
        elif name.endswith("scale_shift_table"):
            noise = 0.3 * noise
        else:
            noise = noise / p[0].numel() ** 0.5
        p.data = noise.bfloat16().float()


def main(base, out):
    torch.set_num_threads(1)
    out = pathlib.Path(out)
    generator = torch.Generator().manual_seed(41)
    z = 6
    vae = AutoencoderKLWan(
        base_dim=4, decoder_base_dim=6, z_dim=z, dim_mult=[1, 2, 2, 2], is_residual=True, in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16,
        latents_mean=[0.3 * k - 0.7 for k in range(z)], latents_std=[0.8 + 0.25 * k for k in range(z)],
    )
    transformer = WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=14, in_channels=z, out_channels=z, text_dim=40, freq_dim=16, ffn_dim=36, num_layers=2,
    )
    for model, name in ((vae, "vae"), (transformer, "transformer")):
        randomize(model, generator)
        model.eval()
        # A copy: the rotary tables, which are buffers, would be rounded too.
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out / "model" / name)
    pipe = WanPipeline.from_pretrained(base, vae=vae, transformer=transformer, torch_dtype=torch.float32)
    pipe.register_to_config(expand_timesteps=True)
    pipe.set_progress_bar_config(disable=True)
    index = {k: v for k, v in pipe.config.items()}
    (out / "model" / "model_index.json").write_text(json.dumps(
        {"_class_name": "WanPipeline", **{k: list(v) if isinstance(v, tuple) else v for k, v in index.items() if not k.startswith("_")}}, indent=1) + "\n")

    golden, calls, outputs, steps = {}, [], [], []
    forward, step, decode, encode = transformer.forward, pipe.scheduler.step, vae.decode, pipe.encode_prompt

    def recorded_forward(*args, **kwargs):
        result = forward(*args, **kwargs)
        calls.append((kwargs, result[0]))
        return result

    def recorded_step(output, *args, **kwargs):
        result = step(output, *args, **kwargs)
        outputs.append(output)
        steps.append(result[0])
        return result

    def recorded_decode(latents, *args, **kwargs):
        result = decode(latents, *args, **kwargs)
        golden["a/vae_in"], golden["a/vae_out"] = latents, result[0]
        return result

    def recorded_encode(*args, **kwargs):
        result = encode(*args, **kwargs)
        golden["a/encode_prompt/0/prompt_embeds"], golden["a/encode_prompt/0/negative_prompt_embeds"] = result
        return result

    transformer.forward, pipe.scheduler.step, vae.decode, pipe.encode_prompt = recorded_forward, recorded_step, recorded_decode, recorded_encode
    shape = (1, z, 3, 4, 2)
    golden["a/noise"] = torch.randn(shape, generator=generator)
    with torch.no_grad():
        video = pipe(**CALL, latents=golden["a/noise"], output_type="np").frames
        golden["a/image_u8"] = torch.from_numpy((video * 255).round().astype(np.uint8))
        golden["a/step_model_output"], golden["a/step_latents"] = torch.stack(outputs), torch.stack(steps)
        golden["a/step_timesteps"] = pipe.scheduler.timesteps.float()
        given, result = calls[0]
        golden["a/transformer/0/in/timestep"], golden["a/transformer/0/out/0"] = given["timestep"], result
        # A first frame that is given has timestep 0, as in image-to-video.
        mixed = given["timestep"].clone()
        mixed[:, : mixed.shape[1] // shape[2]] = 0
        golden["tokens/timestep"] = mixed
        golden["tokens/out"] = forward(**{**given, "timestep": mixed})[0]
        golden["vae_encode/in"] = torch.rand((1, 3, 9, 32, 32), generator=generator) * 2 - 1
        posterior = vae.encode(golden["vae_encode/in"]).latent_dist
        golden["vae_encode/mean"], golden["vae_encode/logvar"] = posterior.mean, posterior.logvar
    save_file({k: v.contiguous() for k, v in golden.items()}, out / "golden.safetensors")
    (out / "golden.json").write_text(json.dumps({"name": "wan-ti2v", "runs": {"a": {"call": CALL}}}, indent=1) + "\n")
    print({k: (tuple(v.shape), float(v.float().std())) for k, v in golden.items()})
    print(sum(p.numel() for p in vae.parameters()), sum(p.numel() for p in transformer.parameters()))


main(*sys.argv[1:])
