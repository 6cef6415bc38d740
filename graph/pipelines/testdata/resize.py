"""Writes resize.safetensors: a picture of noise, and what Pillow's Lanczos filter makes of it at several sizes, as diffusers'
VaeImageProcessor resizes pictures. Pillow 13 goes along columns first where the height shrinks much more than the width, which rounds otherwise;
earlier ones never do, and no size here is such. Needs Pillow 13.0, numpy and safetensors:  python resize.py
"""

import pathlib

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

rng = np.random.default_rng(1)
# Coarse and fine structure, with values at both ends of the range.
coarse = np.kron(rng.integers(0, 2, (8, 11, 3)) * 255, np.ones((5, 5, 1)))[:37, :53]
picture = np.clip(coarse + rng.normal(0, 60, coarse.shape), 0, 255).astype(np.uint8)
out = {"picture": picture}
for height, width in ((64, 96), (16, 24), (37, 24), (20, 53), (100, 5), (1, 1), (36, 52)):
    out[f"{height}x{width}"] = np.array(Image.fromarray(picture).resize((width, height), resample=Image.Resampling.LANCZOS))
save_file(out, pathlib.Path(__file__).parent / "resize.safetensors")
