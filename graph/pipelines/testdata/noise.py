"""Writes noise.json: what torch.randn draws on the CPU, for the test of the noise rule. Run: python noise.py > noise.json

Each case has a seed and the sizes of consecutive draws from one generator. Of draws above 64 values, the first and last 32 are kept.
"""

import json
import struct

import torch

CASES = [
    (0, [4]),
    (0, [15]),
    (0, [16]),
    (0, [17]),
    (0, [100]),
    (0, [4096]),
    (42, [4, 4, 16]),
    (42, [5, 17, 5, 100]),  # an odd draw leaves a spare number for the next
    (1234567, [1, 1, 1, 2, 31, 33]),
    (2**32 + 5, [16, 3]),
    (2**63, [4096, 4096]),
    (2**64 - 1, [15, 15]),
]


def bits(x):
    return struct.pack(">f", x).hex()


out = {"made_by": f"noise.py with torch {torch.__version__}", "cases": []}
for seed, sizes in CASES:
    g = torch.Generator("cpu").manual_seed(seed)
    draws = []
    for n in sizes:
        v = [bits(x) for x in torch.randn(n, generator=g).tolist()]
        draws.append({"size": n, "first": v[:32], "last": v[-32:]} if n > 64 else {"size": n, "first": v})
    out["cases"].append({"seed": seed, "draws": draws})
text = json.dumps(out, indent=None, separators=(", ", ": "))
print(text.replace('{"seed"', '\n{"seed"'))
